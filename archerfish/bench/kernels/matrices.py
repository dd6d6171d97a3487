"""Matrices for timing kernels, in the model's format or quantized. Sizes are real, contents random."""

import math
from dataclasses import replace
from functools import cache
from typing import Protocol

import torch
from torch import Tensor

from archerfish.ops.cpu.program import PANEL
from archerfish.ops.packed import PackedExperts, PackedWeight
from archerfish.quant import WeightFormat

FORMATS = (
    WeightFormat(name="int8"),
    WeightFormat(name="w8a8"),
    WeightFormat(name="int4", group=32),
    WeightFormat(name="int4", group=64),
    WeightFormat(name="int4", group=128),
    WeightFormat(name="int4", group=64, zero_points=True),
)
"""Formats of the matrices of layers."""
VOCABULARY_FORMATS = tuple(dict.fromkeys(weights.of_vocabulary for weights in FORMATS))
"""Formats of embedding and head."""

_NOISE_LENGTH = 1 << 20


def noise(shape: tuple[int, ...], dtype: torch.dtype, device: str) -> Tensor:
    """Return random numbers; one stretch is repeated until the shape is full."""
    count = math.prod(shape)
    numbers = torch.randn(min(count, _NOISE_LENGTH), dtype=dtype, device=device)
    return numbers.expand(-(-count // len(numbers)), -1).reshape(-1)[:count].view(shape)


class Matrices(Protocol):
    """Makes matrices. Shapes are [outputs, inputs], or [experts, outputs, inputs]."""

    @property
    def format(self) -> str | None:
        """Name of the format."""

    def make(self, *shape: int) -> Tensor | PackedWeight | PackedExperts: ...

    def num_bytes(self, *shape: int) -> float: ...


class FullMatrices:
    def __init__(self, dtype: torch.dtype, device: str) -> None:
        self.format = None
        self._dtype, self._device = dtype, device

    def make(self, *shape: int) -> Tensor:
        return noise(shape, self._dtype, self._device)

    def num_bytes(self, *shape: int) -> float:
        return float(math.prod(shape) * self._dtype.itemsize)


class QuantizedMatrices:
    """Matrices made of one packed panel that is repeated: rounding a whole matrix would take longer than its timing."""

    def __init__(self, weights: WeightFormat) -> None:
        self.format = format_name(weights)
        self._weights = weights

    def make(self, *shape: int) -> PackedWeight | PackedExperts:
        *experts, num_outputs, num_inputs = shape
        panel, count = _panel(self._weights, num_inputs), -(-num_outputs // PANEL)
        data = panel.data.repeat(*experts, count, 1)
        scales = None if panel.scales is None else panel.scales.repeat(*experts, count)
        if not experts:
            return replace(panel, num_outputs=num_outputs, data=data, scales=scales)
        first = replace(panel, num_outputs=num_outputs, data=data[0], scales=None if scales is None else scales[0])
        return PackedExperts(first=first, data=data, scales=scales)

    def num_bytes(self, *shape: int) -> float:
        *experts, num_outputs, num_inputs = shape
        return float(math.prod(experts) * -(-num_outputs // PANEL) * _panel(self._weights, num_inputs).nbytes)


@cache
def _panel(weights: WeightFormat, num_inputs: int) -> PackedWeight:
    return weights.pack(torch.randn(PANEL, num_inputs))


def format_name(weights: WeightFormat) -> str:
    """Return a name short enough for a table."""
    if weights.name != "int4":
        return weights.name
    return f"int4 g{weights.group}{' zeros' if weights.zero_points else ''}"
