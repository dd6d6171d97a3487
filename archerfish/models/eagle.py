"""EAGLE-3: a draft head that proposes token after token from the target's hidden states.

A row is a pair: the target's state at a position, and the token that followed it. The row has that position, and its
logits are those of the token after. Where the target has not computed a position yet, the head's own output for the row
before replaces the target's state.
"""

import torch
from torch import Tensor, nn

from archerfish.arch.heads import EagleSpec
from archerfish.arch.rope import RopeSpec
from archerfish.models.decoder import Angles, Attention, Rotations, feed_forward
from archerfish.models.layers import Embedding, Linear, Norm, SharedModule
from archerfish.ops.signatures import AttendFunction, Ops


class Eagle(nn.Module):
    def __init__(self, spec: EagleSpec, embedding: nn.Module | None, ops: Ops, max_model_len: int) -> None:
        """The embedding is the target's, where the head has none of its own."""
        super().__init__()
        assert (embedding is None) == spec.has_embedding, "there is one table, its own or the target's"
        table = Embedding(spec.target_vocab_size, spec.hidden_size, ops) if embedding is None else embedding
        self.spec = spec
        arch, hidden = spec.arch, spec.hidden_size
        self.joining = Linear(len(spec.target_layers) * spec.target_hidden_size, hidden, False, ops)
        self.embedding = table if spec.has_embedding else None
        self._table = SharedModule(table)
        self.rotations = Rotations(arch, max_model_len, ops)
        self.layer = EagleLayer(spec, ops)
        self.norm = Norm(spec.norm, hidden, ops)
        self.head = Linear(hidden, spec.vocab_size, False, ops)
        self.target_ids: Tensor | None
        """[draft vocabulary] the target's id of each token; None where both have the same ids."""
        # Always on the host: a head whose weights are loaded later has its tokens all the same.
        ids = torch.arange(spec.vocab_size, device="cpu") if spec.vocab_size < spec.target_vocab_size else None
        self.register_buffer("target_ids", ids)

    @property
    def vocabulary(self) -> tuple[nn.Module, ...]:
        """Modules with a row for each token."""
        return (self.head,) if self.embedding is None else (self.embedding, self.head)

    def joined(self, taps: Tensor) -> Tensor:
        """Combine the target's states of several layers [T, layers * target's hidden] -> states [T, hidden]."""
        out: Tensor = self.joining(taps)
        return out

    def forward(self, tokens: Tensor, positions: Tensor, states: Tensor, attend: AttendFunction) -> Tensor:
        """Compute [T], [T], [T, hidden] -> [T, hidden], not normalized: the states of the pass that continues from
        here."""
        out: Tensor = self.layer(self._table(tokens), states, self.rotations(positions), attend)
        return out

    def logits(self, states: Tensor) -> Tensor:
        """Compute [rows, hidden] -> [rows, draft vocabulary], in float32."""
        logits: Tensor = self.head(self.norm(states))
        return logits.float()


class EagleLayer(nn.Module):
    """Computes queries, keys and values from the token and the state: two projections, added."""

    def __init__(self, spec: EagleSpec, ops: Ops) -> None:
        super().__init__()
        self.add = ops.add
        self.norm_before_residual = spec.norm_before_residual
        self.token_norm = Norm(spec.norm, spec.hidden_size, ops)
        self.state_norm = Norm(spec.norm, spec.hidden_size, ops)
        self.attention = Attention(spec.arch, 0, ops)
        """Its projection is that of the token."""
        self.state_qkv = Linear(spec.hidden_size, spec.layer.attention.qkv_width, False, ops)
        self.mlp_norm = Norm(spec.norm, spec.hidden_size, ops)
        self.mlp = feed_forward(spec.arch, spec.layer, ops)

    def forward(
        self, embedded: Tensor, states: Tensor, angles: dict[RopeSpec, Angles], attend: AttendFunction
    ) -> Tensor:
        normed = self.state_norm(states)
        qkv = self.add(self.attention.qkv(self.token_norm(embedded)), self.state_qkv(normed), 1.0)
        attended = self.attention.attended(qkv, angles, attend)
        x = self.add(normed if self.norm_before_residual else states, attended, 1.0)
        return self.add(x, self.mlp(self.mlp_norm(x)), 1.0)
