"""Pairs of a token and an expert, brought together in tiles by expert. Knows neither matrices nor their formats.

A pair is a token and one of its places: token * num_chosen + place. Who else is there decides which tile a pair is in.
"""

from dataclasses import dataclass

import triton
import triton.language as tl
from torch import Tensor

from archerfish.ops.triton.gemm import finish
from archerfish.ops.triton.runtime import await_inputs, launch, let_next_start

_MOST_COMPARED = 64  # Pairs up to this many are not sorted first: a program finds those of its tile among them.
_MOST_COUNTED = 4096  # Pairs that a program counts at once.
_BESIDE: tl.constexpr = tl.constexpr(16)  # Tiles that share outputs, and with them weights, before the next outputs.


@dataclass(frozen=True, slots=True, eq=False)
class Tiled:
    """Pairs, and where the tiles are found that they are in."""

    chosen: Tensor
    """[tokens, places]"""
    order: Tensor
    """[pairs] int32: pairs by expert, those of an expert as they come."""
    tiles: Tensor
    """[pairs, 3] int32: expert, where in the order, how many pairs. No tile is empty, so these are enough."""
    num_experts: int
    num_rows: int
    """Most pairs of a tile."""

    @property
    def num_pairs(self) -> int:
        return self.chosen.numel()

    @property
    def num_compared(self) -> int:
        """As many as a program looks at to find its own; none where they are sorted."""
        return 0 if self.num_pairs > _MOST_COMPARED else triton.next_power_of_2(self.num_pairs)

    @property
    def num_tiles(self) -> int:
        """As many as there are if every expert that can have a pair leaves a tile with just one."""
        if self.num_compared:
            return self.num_pairs
        return (self.num_pairs + min(self.num_experts, self.num_pairs) * (self.num_rows - 1)) // self.num_rows

    @property
    def arguments(self) -> tuple[Tensor, Tensor, Tensor, int, int]:
        """Of a kernel that calls `pairs_of_program`."""
        return self.chosen, self.order, self.tiles, self.num_pairs, self.num_tiles

    def sort(self) -> None:
        """Fill in order and tiles, if there are too many pairs to compare."""
        if self.num_compared:
            return
        block = min(triton.next_power_of_2(self.num_pairs), _MOST_COUNTED)
        launch(
            sort_kernel, (self.num_experts,), self.order, self.tiles, self.chosen, self.num_pairs, self.num_tiles,
            NUM_BINS=triton.next_power_of_2(self.num_experts), BLOCK=block, BLOCK_M=self.num_rows,
            num_warps=8 if block == _MOST_COUNTED else 4,
        )  # fmt: skip


@triton.jit(do_not_specialize=["num_pairs", "most_tiles"])
def sort_kernel(
    order, tiles, chosen, num_pairs, most_tiles,
    NUM_BINS: tl.constexpr, BLOCK: tl.constexpr, BLOCK_M: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """The pairs of one expert and their tiles. Each program counts for itself, so that none waits for another."""
    let_next_start(EARLY)
    expert = tl.program_id(0)
    bins = tl.arange(0, NUM_BINS)
    counts = tl.zeros([NUM_BINS], tl.int32)
    await_inputs(EARLY)
    for start in range(0, num_pairs, BLOCK):
        pairs = start + tl.arange(0, BLOCK)
        choices = tl.load(chosen + pairs, mask=pairs < num_pairs, other=0).to(tl.int32)
        counts += tl.histogram(choices, NUM_BINS, mask=pairs < num_pairs)
    num_tiles = (counts + BLOCK_M - 1) // BLOCK_M
    first = tl.sum(tl.where(bins < expert, counts, 0), 0)
    end = first + tl.sum(tl.where(bins == expert, counts, 0), 0)
    first_tile = tl.sum(tl.where(bins < expert, num_tiles, 0), 0)
    if expert == tl.num_programs(0) - 1:
        for tile in range(tl.sum(num_tiles, 0), most_tiles):
            tl.store(tiles + tile * 3 + 2, 0)
    for start in range(first, end, BLOCK_M):
        tile = tiles + (first_tile + (start - first) // BLOCK_M) * 3
        tl.store(tile, expert)
        tl.store(tile + 1, start)
        tl.store(tile + 2, tl.minimum(end - start, BLOCK_M))
    for start in range(0, num_pairs, BLOCK):
        pairs = start + tl.arange(0, BLOCK)
        is_own = tl.load(chosen + pairs, mask=pairs < num_pairs, other=-1).to(tl.int32) == expert
        places = first + tl.cumsum(is_own.to(tl.int32), 0) - 1
        tl.store(order + places, pairs, mask=is_own)
        first += tl.sum(is_own.to(tl.int32), 0)


@triton.jit
def _sorted_tile(tile, order, tiles, BLOCK_M: tl.constexpr):
    """The expert of a tile, its number of pairs, and these; the last again and again where it has fewer."""
    expert, first, number = tl.load(tiles + tile * 3), tl.load(tiles + tile * 3 + 1), tl.load(tiles + tile * 3 + 2)
    rows = tl.minimum(tl.arange(0, BLOCK_M), number - 1)
    return expert, number, tl.load(order + first + rows, mask=rows >= 0, other=0)


@triton.jit
def _compared_tile(tile, chosen, num_pairs, COMPARED: tl.constexpr, BLOCK_M: tl.constexpr):
    """The same of the tile that starts with pair number `tile`. It is empty where that pair is in an earlier one."""
    pairs = tl.arange(0, COMPARED)
    expert = tl.load(chosen + tile).to(tl.int32)
    is_same = (tl.load(chosen + pairs, mask=pairs < num_pairs, other=-1).to(tl.int32) == expert).to(tl.int32)
    earlier = tl.sum(tl.where(pairs < tile, is_same, 0), 0)
    number = tl.where(earlier % BLOCK_M == 0, tl.minimum(tl.sum(is_same, 0) - earlier, BLOCK_M), 0)
    ranks = tl.where(is_same != 0, tl.cumsum(is_same, 0) - 1, -1)  # [COMPARED] among pairs of the same expert.
    rows = earlier + tl.minimum(tl.arange(0, BLOCK_M), number - 1)
    return expert, number, tl.sum(tl.where(ranks[None, :] == rows[:, None], pairs[None, :], 0), 1)


@triton.jit
def pairs_of_program(
    chosen, order, tiles, num_pairs, most_tiles,
    NUM_OUTPUTS: tl.constexpr, COMPARED: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """A program's first output, its expert, its number of pairs, and these; the last again where it has fewer."""
    num_blocks: tl.constexpr = (NUM_OUTPUTS + BLOCK_N - 1) // BLOCK_N
    group = tl.program_id(0) // (_BESIDE * num_blocks)
    within = tl.program_id(0) % (_BESIDE * num_blocks)
    num_beside = tl.minimum(most_tiles - group * _BESIDE, _BESIDE)
    tile = group * _BESIDE + within % num_beside
    first_output = within // num_beside * BLOCK_N
    if COMPARED:
        expert, number, pairs = _compared_tile(tile, chosen, num_pairs, COMPARED, BLOCK_M)
    else:
        expert, number, pairs = _sorted_tile(tile, order, tiles, BLOCK_M)
    return first_output, expert, number, pairs


@triton.jit
def store_pairs(
    out, y, up, first_output, pairs, number, num_pairs,
    NUM_OUTPUTS: tl.constexpr, BLOCK_M: tl.constexpr, ACTIVATION: tl.constexpr,
):  # fmt: skip
    """Some outputs of a tile's pairs, into a row of out for each of them that there is."""
    # Past the number of pairs none that there is: nothing is stored for them.
    kept = tl.where(tl.arange(0, BLOCK_M) < number, pairs, num_pairs)
    finish(
        out, None, None, y, up, None, first_output, kept, NUM_OUTPUTS, num_pairs, NUM_OUTPUTS, 0, 0,
        out.dtype.element_ty, ACTIVATION,
    )  # fmt: skip
