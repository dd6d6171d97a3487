"""Runs the target over whole texts and returns its states, without gradients."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor

from archerfish.arch.arch import AttentionSpec
from archerfish.models.attention import batched_attention
from archerfish.models.decoder import Decoder, TapFunction


class TargetReading(NamedTuple):
    """The target's states for a batch."""

    tokens: Tensor
    """[rows, length]"""
    states: Tensor
    """[rows, length, hidden] after its final norm."""
    taps: Tensor | None
    """[rows, length, layers * hidden] layer inputs that a drafter reads; None if it reads none."""


class DraftingTarget:
    def __init__(self, decoder: Decoder, taps: tuple[int, ...]) -> None:
        self.decoder = decoder
        self._taps = taps

    @torch.no_grad()
    def read(self, tokens: Tensor) -> TargetReading:
        """Read texts [rows, length] from their beginning."""
        heard: dict[int, Tensor] = {}

        def tap(layer: int, x: Tensor) -> None:
            if layer in self._taps:
                heard[layer] = x

        with half_precision(tokens.device):
            states = read_rows(self.decoder, tokens, tap)
        taps = torch.cat([heard[layer] for layer in self._taps], dim=-1).view(*tokens.shape, -1) if heard else None
        return TargetReading(tokens, states, taps)

    @torch.no_grad()
    def logits(self, states: Tensor) -> Tensor:
        """Compute [rows, hidden] -> [rows, vocabulary], in float32."""
        with half_precision(states.device):
            return self.decoder.logits(states)


class RowsAttention:
    """Causal attention within each of several rows of equal length, one after the other."""

    def __init__(self, specs: list[AttentionSpec], num_rows: int) -> None:
        self._specs = specs
        self._num_rows = num_rows
        self._made: dict[int, tuple[Tensor, Tensor]] = {}

    def __call__(self, layer: int, q: Tensor, k: Tensor | None, v: Tensor | None) -> Tensor:
        spec = self._specs[layer]
        if k is not None and v is not None:
            self._made[layer] = self._in_rows(k), self._in_rows(v)
        keys, values = self._made[layer if spec.kv_source is None else spec.kv_source]
        return batched_attention(self._in_rows(q), keys, values, spec).flatten(0, 1)

    def _in_rows(self, x: Tensor) -> Tensor:
        return x.view(self._num_rows, -1, *x.shape[1:])  # [rows, T, heads, D]


def read_rows(decoder: Decoder, tokens: Tensor, tap: TapFunction = lambda layer, x: None) -> Tensor:
    """Compute [rows, length] -> [rows, length, hidden], after the final norm."""
    attend = RowsAttention([layer.attention for layer in decoder.arch.layers], len(tokens))
    states: Tensor = decoder(tokens.flatten(), row_positions(tokens), attend, tap)
    return states.view(*tokens.shape, -1)


def row_positions(tokens: Tensor) -> Tensor:
    """Return positions [rows * length], which begin at 0 in each row."""
    return torch.arange(tokens.shape[1], device=tokens.device).repeat(len(tokens))


@contextmanager
def half_precision(device: torch.device) -> Iterator[None]:
    """Run GEMMs in bfloat16 if the hardware supports it; on a CPU in float32, so that bits are reproducible."""
    with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
        yield
