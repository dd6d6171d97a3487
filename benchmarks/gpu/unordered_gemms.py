"""GEMMs of one row that add up in the fastest order: the baseline of invariance, never used for serving.

Without tensor cores each thread adds up some of the inputs, and threads add up their sums. With them K is split among
programs, and the last one to arrive adds up what the others stored.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from archerfish.ops.triton.runtime import dot, launch, pdl_trigger, pdl_wait

_LEAST_ROWS: tl.constexpr = tl.constexpr(8)


@dataclass(frozen=True)
class Plain:
    """A kernel without tensor cores."""

    outputs: int
    inputs: int
    unrolled: int
    num_warps: int

    def fits(self, num_outputs: int, num_inputs: int) -> bool:
        return num_outputs % self.outputs == 0 and num_inputs % self.inputs == 0

    def multiply(self, x: Tensor, weight: Tensor) -> Tensor:
        """Multiply [1, K] x [N, K] -> [1, N]."""
        num_outputs, num_inputs = weight.shape
        out = torch.empty((1, num_outputs), dtype=x.dtype, device=x.device)
        launch(
            plain_kernel, (num_outputs // self.outputs,), out, x, weight, num_inputs,
            OUTPUTS=self.outputs, INPUTS=self.inputs, UNROLLED=self.unrolled, num_warps=self.num_warps,
        )  # fmt: skip
        return out


@dataclass(frozen=True)
class Split:
    """A kernel with tensor cores that splits K among programs."""

    splits: int
    outputs: int
    inputs: int
    num_warps: int
    num_stages: int

    def fits(self, num_outputs: int, num_inputs: int) -> bool:
        return num_outputs % self.outputs == 0 and num_inputs % (self.splits * self.inputs) == 0

    def multiply(self, x: Tensor, weight: Tensor) -> Tensor:
        """Multiply [1, K] x [N, K] -> [1, N]."""
        num_outputs, num_inputs = weight.shape
        num_blocks = num_outputs // self.outputs
        out = torch.empty((1, num_outputs), dtype=x.dtype, device=x.device)
        partial = torch.empty((self.splits, num_outputs), dtype=torch.float32, device=x.device)
        launch(
            split_kernel, (num_blocks, self.splits),
            out, partial, _no_arrivals(num_blocks, x.device), x, weight, num_outputs, num_inputs,
            SPLITS=self.splits, OUTPUTS=self.outputs, INPUTS=self.inputs,
            num_warps=self.num_warps, num_stages=self.num_stages,
        )  # fmt: skip
        return out


_arrivals: dict[torch.device, Tensor] = {}
_MOST_BLOCKS = 1 << 14


def _no_arrivals(num_blocks: int, device: torch.device) -> Tensor:
    """Return counters, zero before and after every launch. Launches run one after the other and share them."""
    assert num_blocks <= _MOST_BLOCKS
    if device not in _arrivals:
        _arrivals[device] = torch.zeros(_MOST_BLOCKS, dtype=torch.int32, device=device)
    return _arrivals[device]


CANDIDATES: tuple[Plain | Split, ...] = (
    Plain(1, 1024, 2, 4),
    Plain(2, 1024, 2, 4),
    Plain(4, 512, 4, 4),
    Plain(4, 1024, 2, 8),
    Plain(8, 512, 2, 4),
    Plain(8, 256, 4, 4),
    Plain(16, 256, 2, 4),
    Plain(2, 512, 4, 2),
    Split(2, 16, 256, 1, 4),
    Split(4, 16, 256, 1, 4),
    Split(4, 32, 128, 2, 5),
    Split(8, 16, 128, 1, 6),
)


def fitting(num_outputs: int, num_inputs: int) -> Iterator[Plain | Split]:
    return (candidate for candidate in CANDIDATES if candidate.fits(num_outputs, num_inputs))


@triton.jit
def plain_kernel(
    out, x, weight, num_inputs,
    OUTPUTS: tl.constexpr, INPUTS: tl.constexpr, UNROLLED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    pdl_trigger(PDL)
    outputs = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    inputs = tl.arange(0, INPUTS)
    pointers = weight + outputs.to(tl.int64)[:, None] * num_inputs + inputs[None, :]
    first = tl.load(pointers).to(tl.float32)
    pdl_wait(PDL)
    total = first * tl.load(x + inputs).to(tl.float32)[None, :]
    for start in tl.range(INPUTS, num_inputs, INPUTS, loop_unroll_factor=UNROLLED):
        numbers = tl.load(x + start + inputs).to(tl.float32)[None, :]
        total += tl.load(pointers + start).to(tl.float32) * numbers
    tl.store(out + outputs, tl.sum(total, 1).to(out.dtype.element_ty))


@triton.jit
def split_kernel(
    out, partial, arrived, x, weight, num_outputs, num_inputs,
    SPLITS: tl.constexpr, OUTPUTS: tl.constexpr, INPUTS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    pdl_trigger(PDL)
    outputs = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    inputs = tl.arange(0, INPUTS)
    length = num_inputs // (SPLITS * INPUTS) * INPUTS  # Computed so that the compiler knows that loads are aligned.
    begin = tl.program_id(1) * length
    lefts = weight + outputs.to(tl.int64)[:, None] * num_inputs + begin + inputs[None, :]
    rights = x + begin + inputs[:, None] + tl.zeros([INPUTS, _LEAST_ROWS], tl.int32)
    is_row = (tl.arange(0, _LEAST_ROWS) == 0)[None, :]
    total = tl.zeros([OUTPUTS, _LEAST_ROWS], tl.float32)
    pdl_wait(PDL)
    for start in range(0, length, INPUTS):
        total = dot(tl.load(lefts + start), tl.load(rights + start, mask=is_row, other=0.0), total)
    tl.store(partial + tl.program_id(1) * num_outputs + outputs, tl.sum(total, 1))
    tl.debug_barrier()  # All of a program's sums are stored before it counts as arrived.
    if tl.atomic_add(arrived + tl.program_id(0), 1) == SPLITS - 1:
        addresses = partial + tl.arange(0, SPLITS)[:, None] * num_outputs + outputs[None, :]
        parts = tl.load(addresses, cache_modifier=".cg")
        tl.store(out + outputs, tl.sum(parts, 0).to(out.dtype.element_ty))
        tl.store(arrived + tl.program_id(0), 0)
