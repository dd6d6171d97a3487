"""Medusa: heads that guess tokens further on from the target's last state alone. Knows nothing of verification."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from archerfish.arch.heads import MedusaSpec
from archerfish.models.layers import Linear, SharedModule
from archerfish.ops.signatures import Ops


class Medusa(nn.Module):
    def __init__(self, spec: MedusaSpec, head: Linear | None, ops: Ops) -> None:
        """The head is the target's, where these have none of their own."""
        super().__init__()
        assert (head is None) == spec.has_own_head, "heads end in matrices of their own or in the target's"
        self.spec = spec
        self.heads = nn.ModuleList(MedusaHead(spec, ops) for _ in range(spec.num_heads))
        self.outputs = nn.ModuleList()
        """One for each head, where they have their own."""
        self.rows: TargetRows | None = None
        """One for all of them, where the target's serves and not all of its tokens can be guessed."""
        is_restricted = spec.vocab_size < spec.target_vocab_size
        if head is None:
            self.outputs.extend(Linear(spec.hidden_size, spec.vocab_size, False, ops) for _ in self.heads)
        elif is_restricted:
            self.rows = TargetRows(head, spec.vocab_size, ops)
        shared = head if self.rows is None else self.rows
        self._shared = None if shared is None else SharedModule(shared)
        self.target_ids: Tensor | None
        """[tokens it can guess] the target's id of each; None where they have the same."""
        # On the host whatever the rest is made on: heads whose weights come later have their tokens all the same.
        self.register_buffer("target_ids", torch.arange(spec.vocab_size, device="cpu") if is_restricted else None)

    @property
    def vocabulary(self) -> tuple[nn.Module, ...]:
        """What has a row for each token."""
        return tuple(self.outputs) if self.rows is None else (self.rows.linear,)

    def forward(self, states: Tensor) -> list[Tensor]:
        """The target's states, normalized, [T, hidden] -> for each head [T, hidden].

        Head i guesses the token i + 2 places after the state's own: the one at + 1 the target draws itself.
        """
        return [head(states) for head in self.heads]

    def logits(self, number: int, states: Tensor) -> Tensor:
        """Of one head's states: [rows, tokens it can guess], in float32."""
        output: Callable[[Tensor], Tensor] = self._shared or self.outputs[number]
        return output(states).float()


class TargetRows(nn.Module):
    """Rows of the target's head: those of the tokens that can be guessed."""

    def __init__(self, head: Linear, num_rows: int, ops: Ops) -> None:
        super().__init__()
        self.embed = ops.embed
        self._head = SharedModule(head)
        hidden_size = head.weight.shape[1]
        self.linear = Linear(hidden_size, num_rows, head.bias is not None, ops).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear(x)
        return out

    def of(self, target_ids: Tensor) -> dict[str, Tensor]:
        """What `linear` holds for these tokens, by its parameters' names. Changes nothing.

        The target's head may be packed already: its rows are looked up like those of any table.
        """
        head = self._head.module
        found = {"weight": self.embed(target_ids, head.weight)}
        if isinstance(head.bias, Tensor):
            found["bias"] = head.bias[target_ids]
        return found


class MedusaHead(nn.Module):
    def __init__(self, spec: MedusaSpec, ops: Ops) -> None:
        super().__init__()
        self.add, self.activate = ops.add, ops.activate
        self.layers = nn.ModuleList(
            Linear(spec.hidden_size, spec.hidden_size, True, ops) for _ in range(spec.num_layers)
        )

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = self.add(x, self.activate(layer(x), "silu", False), 1.0)
        return x
