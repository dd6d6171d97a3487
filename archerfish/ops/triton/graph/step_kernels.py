"""Kernels that a captured step needs besides the model's: they gather its tokens and slots, and store drawn tokens."""

import triton
import triton.language as tl
from torch import Tensor

from archerfish.ops.triton.runtime import launch, pdl_trigger, pdl_wait

_BLOCK = 256


@triton.jit
def _scatter_kernel(memory, count, pairs, BLOCK: tl.constexpr, PDL: tl.constexpr):
    pdl_trigger(PDL)
    pdl_wait(PDL)
    num_pairs = tl.load(count)
    for first in range(tl.program_id(0) * BLOCK, num_pairs, tl.num_programs(0) * BLOCK):
        pair = first + tl.arange(0, BLOCK)
        inside = pair < num_pairs
        index = tl.load(pairs + 2 * pair, mask=inside, other=0)
        tl.store(memory + index, tl.load(pairs + 2 * pair + 1, mask=inside, other=0), mask=inside)


def scatter(memory: Tensor, count: Tensor, pairs: Tensor) -> None:
    """Set memory[index] = value for the first `count` pairs (index, value) [n, 2] int32. No index occurs twice."""
    num_programs = min(8, triton.cdiv(len(pairs), _BLOCK))
    launch(_scatter_kernel, (num_programs,), memory, count, pairs, BLOCK=_BLOCK, num_warps=4)


@triton.jit
def _gather_kernel(
    tokens, slots, memory, tables, rows, positions, num_tokens, token_stride, table_stride,
    GROUPS: tl.constexpr, BLOCK_SIZE: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    pdl_wait(PDL)
    # Only now: later kernels may read block tables before they wait, and those are complete from here on.
    pdl_trigger(PDL)
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = index < num_tokens
    row = tl.load(rows + index, mask=inside, other=-1).to(tl.int64)
    position = tl.load(positions + index, mask=inside, other=0)
    valid = inside & (row >= 0)
    tl.store(tokens + index, tl.load(memory + row * token_stride + position, mask=valid, other=0), mask=inside)
    for group in tl.static_range(GROUPS):
        table = memory + tl.load(tables + group)
        block = tl.load(table + row * table_stride + position // BLOCK_SIZE, mask=valid, other=0).to(tl.int64)
        slot = tl.where(valid, block * BLOCK_SIZE + position % BLOCK_SIZE, -1)
        tl.store(slots + group * num_tokens + index, slot, mask=inside)


def gather_tokens(
    tokens: Tensor,
    slots: Tensor,
    memory: Tensor,
    tables: Tensor,
    rows: Tensor,
    positions: Tensor,
    strides: tuple[int, int, int],
) -> None:
    """Gather tokens [T] and slots [groups, T] at positions of rows; a row of -1 has none, and gets slot -1.

    Memory begins with the rows' tokens; tables [groups] int64 has the offset of each group's block tables. Strides are
    those of a row's tokens and of a row's blocks; the third number is the tokens of a block.
    """
    token_stride, table_stride, block_size = strides
    launch(
        _gather_kernel,
        (triton.cdiv(len(tokens), _BLOCK),),
        tokens, slots, memory, tables, rows, positions, len(tokens), token_stride, table_stride,
        GROUPS=len(slots), BLOCK_SIZE=block_size, BLOCK=_BLOCK, num_warps=4,
    )  # fmt: skip


@triton.jit
def _store_kernel(
    results, memory, tokens, peaks, rows, positions, num_tokens, token_stride, BLOCK: tl.constexpr, PDL: tl.constexpr
):
    pdl_trigger(PDL)
    pdl_wait(PDL)
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = index < num_tokens
    token = tl.load(tokens + index, mask=inside, other=0).to(tl.int32)
    row = tl.load(rows + index, mask=inside, other=-1).to(tl.int64)
    position = tl.load(positions + index, mask=inside, other=0)
    tl.store(memory + row * token_stride + position, token, mask=inside & (row >= 0))
    tl.store(results + index, token, mask=inside)
    peak = tl.load(peaks + index, mask=inside, other=0.0)
    tl.store(results + num_tokens + index, peak.to(tl.int32, bitcast=True), mask=inside)


def store_tokens(
    results: Tensor, memory: Tensor, tokens: Tensor, peaks: Tensor, rows: Tensor, positions: Tensor, token_stride: int
) -> None:
    """Store drawn tokens [P] in their rows' memory, and together with the bits of their peaks in results [2, P]
    int32."""
    launch(
        _store_kernel,
        (triton.cdiv(len(tokens), _BLOCK),),
        results, memory, tokens, peaks, rows, positions, len(tokens), token_stride,
        BLOCK=_BLOCK, num_warps=4,
    )  # fmt: skip


@triton.jit
def _gather_rows_kernel(out, x, x_stride, indices, WIDTH: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr):
    pdl_trigger(PDL)
    pdl_wait(PDL)
    row = tl.load(indices + tl.program_id(0)).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < WIDTH
    tl.store(out + tl.program_id(0) * WIDTH + column, tl.load(x + row * x_stride + column, mask=inside), mask=inside)


def select_into(out: Tensor, x: Tensor, indices: Tensor) -> None:
    """Set out[i] = x[indices[i]]."""
    width, block = x.shape[1], 1024
    launch(
        _gather_rows_kernel,
        (len(out), triton.cdiv(width, block)),
        out, x, x.stride(0), indices, WIDTH=width, BLOCK=block, num_warps=4,
    )  # fmt: skip
