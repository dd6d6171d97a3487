"""Medusa: draft heads that propose tokens further ahead from the target's last state alone."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from archerfish.arch.heads import MedusaSpec
from archerfish.models.layers import Linear, SharedModule
from archerfish.ops.signatures import Ops


class Medusa(nn.Module):
    def __init__(self, spec: MedusaSpec, head: Linear | None, ops: Ops) -> None:
        """The output head is the target's, where these have none of their own."""
        super().__init__()
        assert (head is None) == spec.has_own_head, "heads end in matrices of their own or in the target's"
        self.spec = spec
        self.heads = nn.ModuleList(MedusaHead(spec, ops) for _ in range(spec.num_heads))
        self.outputs = nn.ModuleList()
        """One per head, where they have their own."""
        self.rows: TargetRows | None = None
        """One for all heads, where they share the target's output head but not all of its tokens."""
        is_restricted = spec.vocab_size < spec.target_vocab_size
        if head is None:
            self.outputs.extend(Linear(spec.hidden_size, spec.vocab_size, False, ops) for _ in self.heads)
        elif is_restricted:
            self.rows = TargetRows(head, spec.vocab_size, ops)
        shared = head if self.rows is None else self.rows
        self._shared = None if shared is None else SharedModule(shared)
        self.target_ids: Tensor | None
        """[draft vocabulary] the target's id of each token; None where both have the same ids."""
        # Always on the host: heads whose weights are loaded later have their tokens all the same.
        self.register_buffer("target_ids", torch.arange(spec.vocab_size, device="cpu") if is_restricted else None)

    @property
    def vocabulary(self) -> tuple[nn.Module, ...]:
        """Modules with a row for each token."""
        return tuple(self.outputs) if self.rows is None else (self.rows.linear,)

    def forward(self, states: Tensor) -> list[Tensor]:
        """Compute the target's normalized states [T, hidden] -> [T, hidden] for each head.

        Head i proposes the token i + 2 positions after the state's own: the target draws the one at + 1 itself.
        """
        return [head(states) for head in self.heads]

    def logits(self, number: int, states: Tensor) -> Tensor:
        """Compute the logits of one head's states: [rows, draft vocabulary], in float32."""
        output: Callable[[Tensor], Tensor] = self._shared or self.outputs[number]
        return output(states).float()


class TargetRows(nn.Module):
    """The rows of the target's output head for the draft vocabulary."""

    def __init__(self, head: Linear, num_rows: int, ops: Ops) -> None:
        super().__init__()
        self.embed = ops.embed
        self._head = SharedModule(head)
        hidden_size = head.weight.shape[1]
        self.linear = Linear(hidden_size, num_rows, head.bias is not None, ops).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear(x)
        return out

    def parameters_of(self, target_ids: Tensor) -> dict[str, Tensor]:
        """Return the parameters of `linear` for these tokens, by name.

        The target's head may be packed already: its rows are looked up like those of any table.
        """
        head = self._head.module
        parameters = {"weight": self.embed(target_ids, head.weight)}
        if isinstance(head.bias, Tensor):
            parameters["bias"] = head.bias[target_ids]
        return parameters


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
