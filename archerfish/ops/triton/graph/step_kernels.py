"""What a step needs on the device beside a model: its tokens and slots found from rows, drawn tokens put back."""

import triton
import triton.language as tl
from torch import Tensor

from archerfish.ops.triton.runtime import await_inputs, launch, let_next_start

_BLOCK = 256


@triton.jit
def _scatter_kernel(memory, count, pairs, BLOCK: tl.constexpr, EARLY: tl.constexpr):
    let_next_start(EARLY)
    await_inputs(EARLY)
    num_pairs = tl.load(count)
    for first in range(tl.program_id(0) * BLOCK, num_pairs, tl.num_programs(0) * BLOCK):
        pair = first + tl.arange(0, BLOCK)
        inside = pair < num_pairs
        place = tl.load(pairs + 2 * pair, mask=inside, other=0)
        tl.store(memory + place, tl.load(pairs + 2 * pair + 1, mask=inside, other=0), mask=inside)


def scatter(memory: Tensor, count: Tensor, pairs: Tensor) -> None:
    """memory[place] = value for the first `count` pairs [n, 2] int32. No place twice."""
    num_programs = min(8, triton.cdiv(len(pairs), _BLOCK))
    launch(_scatter_kernel, (num_programs,), memory, count, pairs, BLOCK=_BLOCK, num_warps=4)


@triton.jit
def _find_kernel(
    tokens, slots, memory, tables, rows, positions, num_tokens, token_stride, table_stride,
    GROUPS: tl.constexpr, BLOCK_SIZE: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    await_inputs(EARLY)
    # Only now: later kernels may read block tables before they wait, and those are complete from here on.
    let_next_start(EARLY)
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = place < num_tokens
    row = tl.load(rows + place, mask=inside, other=-1).to(tl.int64)
    position = tl.load(positions + place, mask=inside, other=0)
    taken = inside & (row >= 0)
    tl.store(tokens + place, tl.load(memory + row * token_stride + position, mask=taken, other=0), mask=inside)
    for group in tl.static_range(GROUPS):
        table = memory + tl.load(tables + group)
        block = tl.load(table + row * table_stride + position // BLOCK_SIZE, mask=taken, other=0).to(tl.int64)
        slot = tl.where(taken, block * BLOCK_SIZE + position % BLOCK_SIZE, -1)
        tl.store(slots + group * num_tokens + place, slot, mask=inside)


def find_tokens(
    tokens: Tensor,
    slots: Tensor,
    memory: Tensor,
    tables: Tensor,
    rows: Tensor,
    positions: Tensor,
    strides: tuple[int, int, int],
) -> None:
    """tokens [T] and slots [groups, T] of what lies at positions of rows; a row of -1 has none, and stores nothing.

    Memory begins with the rows' tokens; tables [groups] int64 says where each group's block tables begin. Strides: of a
    row's tokens, of a row's blocks; then the tokens of a block.
    """
    token_stride, table_stride, block_size = strides
    launch(
        _find_kernel,
        (triton.cdiv(len(tokens), _BLOCK),),
        tokens, slots, memory, tables, rows, positions, len(tokens), token_stride, table_stride,
        GROUPS=len(slots), BLOCK_SIZE=block_size, BLOCK=_BLOCK, num_warps=4,
    )  # fmt: skip


@triton.jit
def _keep_kernel(
    results, memory, tokens, peaks, rows, positions, num_tokens, token_stride, BLOCK: tl.constexpr, EARLY: tl.constexpr
):
    let_next_start(EARLY)
    await_inputs(EARLY)
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = place < num_tokens
    token = tl.load(tokens + place, mask=inside, other=0).to(tl.int32)
    row = tl.load(rows + place, mask=inside, other=-1).to(tl.int64)
    position = tl.load(positions + place, mask=inside, other=0)
    tl.store(memory + row * token_stride + position, token, mask=inside & (row >= 0))
    tl.store(results + place, token, mask=inside)
    peak = tl.load(peaks + place, mask=inside, other=0.0)
    tl.store(results + num_tokens + place, peak.to(tl.int32, bitcast=True), mask=inside)


def keep_tokens(
    results: Tensor, memory: Tensor, tokens: Tensor, peaks: Tensor, rows: Tensor, positions: Tensor, token_stride: int
) -> None:
    """Drawn tokens [P] to their rows; with the bits of their peaks to results [2, P] int32, for the host."""
    launch(
        _keep_kernel,
        (triton.cdiv(len(tokens), _BLOCK),),
        results, memory, tokens, peaks, rows, positions, len(tokens), token_stride,
        BLOCK=_BLOCK, num_warps=4,
    )  # fmt: skip


@triton.jit
def _select_kernel(out, x, x_stride, picked, WIDTH: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr):
    let_next_start(EARLY)
    await_inputs(EARLY)
    row = tl.load(picked + tl.program_id(0)).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < WIDTH
    tl.store(out + tl.program_id(0) * WIDTH + column, tl.load(x + row * x_stride + column, mask=inside), mask=inside)


def select_into(out: Tensor, x: Tensor, picked: Tensor) -> None:
    """out[i] = x[picked[i]]."""
    width, block = x.shape[1], 1024
    launch(
        _select_kernel,
        (len(out), triton.cdiv(width, block)),
        out, x, x.stride(0), picked, WIDTH=width, BLOCK=block, num_warps=4,
    )  # fmt: skip
