"""Training of EAGLE-3 heads, unrolled over several depths: each reads the states of the one before."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from archerfish.arch.arch import Arch, AttentionSpec, ExpertsSpec, LayerSpec, MlpSpec, NormSpec
from archerfish.arch.heads import EagleSpec
from archerfish.arch.rope import RopeSpec
from archerfish.compress.drafters.options import DrafterOptions
from archerfish.compress.drafters.target import TargetReading, row_positions
from archerfish.models.attention import batched_attention
from archerfish.models.decoder import Decoder
from archerfish.models.eagle import Eagle
from archerfish.models.layers import Norm
from archerfish.ops.signatures import AttendFunction, Ops
from archerfish.weights.heads import choose_tokens, save_head

_FEW_LAYERS = 8
"""Number of layers below which the usual depths of the target coincide."""


class EagleDrafter:
    def __init__(self, head: Eagle, depths: int, base: str) -> None:
        self.module = head
        self.trained_depths = depths
        self._base = base

    @property
    def taps(self) -> tuple[int, ...]:
        return self.module.spec.target_layers

    @property
    def target_ids(self) -> Tensor | None:
        return self.module.target_ids

    def states(self, reading: TargetReading, num_depths: int) -> list[Tensor]:
        """Run all positions of a depth at once, as if each draft had begun that many positions earlier."""
        assert reading.taps is not None
        tokens = reading.tokens[:, 1:]
        positions = row_positions(tokens)
        states = self.module.joined(reading.taps[:, :-1].flatten(0, 1))
        states_by_depth: list[Tensor] = []
        lines = LineAttention(self.module.spec.layer.attention, len(tokens))
        for depth in range(num_depths):
            states = self.module(tokens.flatten(), positions, states, lines.at(depth))
            rows = states.view(*tokens.shape, -1)
            states_by_depth.append(rows[:, depth:])
            # Positions before the depth have no draft that began early enough; what they compute reaches no loss.
            states = F.pad(rows[:, :-1], (0, 0, 1, 0)).flatten(0, 1)
        return states_by_depth

    def logits(self, depth: int, states: Tensor) -> Tensor:
        del depth
        return self.module.logits(states)

    def save(self, directory: Path, about: Mapping[str, Any]) -> None:
        save_head(self.module.to(torch.bfloat16), directory, self._base, about)


class LineAttention:
    """Attention of draft tokens at a depth: over the target's features, then over the draft's own tokens.

    The line of depth d at position i began at i - d: it sees the keys of depth 0 up to there, and of each depth m above
    it the key at i - d + m.
    """

    def __init__(self, spec: AttentionSpec, num_rows: int) -> None:
        self._spec = spec
        self._num_rows = num_rows
        self._keys: list[Tensor] = []
        self._values: list[Tensor] = []

    def at(self, depth: int) -> AttendFunction:
        def attend(layer: int, q: Tensor, k: Tensor | None, v: Tensor | None) -> Tensor:
            assert layer == 0 and k is not None and v is not None and len(self._keys) == depth
            q, k, v = (x.view(self._num_rows, -1, *x.shape[1:]) for x in (q, k, v))  # [rows, T, heads, D]
            self._keys.append(k)
            self._values.append(v)
            if depth == 0:
                return batched_attention(q, k, v, self._spec).flatten(0, 1)
            return self._along_lines(q, depth).flatten(0, 1)

        return attend

    def _along_lines(self, q: Tensor, depth: int) -> Tensor:
        repeat = self._spec.num_heads // self._spec.num_kv_heads
        keys, values = (
            torch.cat(parts, dim=1).transpose(1, 2).repeat_interleave(repeat, dim=1)
            for parts in (self._keys, self._values)
        )  # [rows, heads, (depth + 1) * T, D]
        seen = line_mask(q.shape[1], depth, q.device)
        out = F.scaled_dot_product_attention(q.transpose(1, 2), keys, values, attn_mask=seen, scale=self._spec.scale)
        return out.transpose(1, 2)


def line_mask(length: int, depth: int, device: torch.device) -> Tensor:
    """Return [T, (depth + 1) * T] which keys of depth 0, 1, ... each position sees at a depth."""
    positions = torch.arange(length, device=device)
    starts = positions[:, None] - depth
    return torch.cat([positions <= starts, *(positions == starts + own for own in range(1, depth + 1))], dim=1)


def eagle_drafter(
    target: Decoder, target_ids: Tensor | None, options: DrafterOptions, ops: Ops, base: str
) -> EagleDrafter:
    """Return a new head in the target's proportions, which begins with the target's last norm and head."""
    spec = eagle_spec(target.arch, options, None if target_ids is None else len(target_ids))
    head = Eagle(spec, target.embedding, ops, spec.max_positions)
    # Drawn on the host, whose numbers are the same everywhere.
    generator = torch.Generator().manual_seed(options.seed)
    with torch.no_grad():
        for name, parameter in head.named_parameters():
            if parameter.dim() < 2:
                parameter.fill_(1.0)
            else:
                spread = parameter.shape[1] ** -0.5
                small = name.endswith(("output.weight", "down.weight"))
                parameter.normal_(0.0, spread * (0.5 if small else 1.0), generator=generator)
        table = target.head.weight
        head.head.weight.copy_(table if target_ids is None else table[target_ids.to(table.device)])
        _begin_with(head.norm, target.norm)
    if target_ids is not None:
        choose_tokens(head, target_ids)
    return EagleDrafter(head.to(table.device), options.depths, base)


def eagle_spec(arch: Arch, options: DrafterOptions, vocab_size: int | None) -> EagleSpec:
    attention = arch.layers[0].attention
    rope = attention.rope or RopeSpec(theta=10000.0, dim=attention.head_dim)
    plain = replace(
        attention, rope=rope, qkv_bias=False, output_bias=False, window=None, softcap=None, qk_norm=None, kv_source=None
    )
    size = options.intermediate_size or _intermediate_size(arch)
    return EagleSpec(
        hidden_size=arch.hidden_size,
        target_hidden_size=arch.hidden_size,
        target_layers=_taps(len(arch.layers)),
        layer=LayerSpec(attention=plain, feed_forward=MlpSpec(size=size)),
        norm=NormSpec(eps=arch.norm.eps),
        vocab_size=vocab_size or arch.vocab_size,
        target_vocab_size=arch.vocab_size,
        has_embedding=False,
        norm_before_residual=False,
        max_positions=arch.max_positions,
    )


def _taps(num_layers: int) -> tuple[int, ...]:
    """Return the layers to read: early, middle and late, as in published heads; in a model with few, all."""
    if num_layers >= _FEW_LAYERS:
        return (2, num_layers // 2, num_layers - 3)
    return tuple(dict.fromkeys((1, max(1, num_layers // 2), num_layers)))


def _intermediate_size(arch: Arch) -> int:
    """Return the target's size; for experts, that of the experts of one token together."""
    spec = arch.layers[0].feed_forward
    return spec.size * (spec.num_experts_per_token if isinstance(spec, ExpertsSpec) else 1)


def _begin_with(norm: Norm, target: Norm) -> None:
    if target.spec.kind == "rms":
        norm.weight.copy_(target.weight.float() + target.spec.weight_offset)
