"""Groups pairs of a token and an expert into tiles by expert.

A pair is a token and one of its experts: token * num_chosen + slot. Other tokens of the step decide which tile a pair
is in.
"""

from dataclasses import dataclass

import triton
import triton.language as tl
from torch import Tensor

from archerfish.ops.triton.gemm import store_epilogue
from archerfish.ops.triton.runtime import launch, pdl_trigger, pdl_wait

_MOST_COMPARED = 64  # Pairs up to this many are not sorted first: a program finds those of its tile among them.
_MOST_COUNTED = 4096  # Pairs that a program counts at once.
_TILES_PER_GROUP: tl.constexpr = tl.constexpr(
    16
)  # Tiles that share outputs, and with them weights, before the next outputs.


@dataclass(frozen=True, slots=True, eq=False)
class TiledPairs:
    """Pairs and the tiles that they are grouped into."""

    chosen: Tensor
    """[tokens, slots] experts."""
    order: Tensor
    """[pairs] int32: pairs by expert, those of an expert in ascending order."""
    tiles: Tensor
    """[pairs, 3] int32: expert, index in the order, number of pairs. No tile is empty, so this many suffice."""
    num_experts: int
    num_rows: int
    """Most pairs of a tile."""

    @property
    def num_pairs(self) -> int:
        return self.chosen.numel()

    @property
    def num_compared(self) -> int:
        """Number of pairs that a program searches for its own; 0 where they are sorted."""
        return 0 if self.num_pairs > _MOST_COMPARED else triton.next_power_of_2(self.num_pairs)

    @property
    def num_tiles(self) -> int:
        """Number of tiles, if every expert that can have a pair has a last tile with just one."""
        if self.num_compared:
            return self.num_pairs
        return (self.num_pairs + min(self.num_experts, self.num_pairs) * (self.num_rows - 1)) // self.num_rows

    @property
    def arguments(self) -> tuple[Tensor, Tensor, Tensor, int, int]:
        """Arguments of a kernel that calls `pairs_of_program`."""
        return self.chosen, self.order, self.tiles, self.num_pairs, self.num_tiles

    def sort(self) -> None:
        """Fill order and tiles, if there are too many pairs to search."""
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
    NUM_BINS: tl.constexpr, BLOCK: tl.constexpr, BLOCK_M: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """List the pairs of one expert and their tiles. Each program counts all pairs, so that none waits for another."""
    pdl_trigger(PDL)
    expert = tl.program_id(0)
    bins = tl.arange(0, NUM_BINS)
    counts = tl.zeros([NUM_BINS], tl.int32)
    pdl_wait(PDL)
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
        positions = first + tl.cumsum(is_own.to(tl.int32), 0) - 1
        tl.store(order + positions, pairs, mask=is_own)
        first += tl.sum(is_own.to(tl.int32), 0)


@triton.jit
def _sorted_tile(tile, order, tiles, BLOCK_M: tl.constexpr):
    """Return the expert of a tile, its number of pairs, and these, padded with the last one."""
    expert, first, number = tl.load(tiles + tile * 3), tl.load(tiles + tile * 3 + 1), tl.load(tiles + tile * 3 + 2)
    rows = tl.minimum(tl.arange(0, BLOCK_M), number - 1)
    return expert, number, tl.load(order + first + rows, mask=rows >= 0, other=0)


@triton.jit
def _compared_tile(tile, chosen, num_pairs, COMPARED: tl.constexpr, BLOCK_M: tl.constexpr):
    """Return the same for the tile that starts with pair number `tile`; empty if that pair is in an earlier one."""
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
    """Return a program's first output, its expert, its number of pairs, and these, padded with the last one."""
    num_blocks: tl.constexpr = (NUM_OUTPUTS + BLOCK_N - 1) // BLOCK_N
    group = tl.program_id(0) // (_TILES_PER_GROUP * num_blocks)
    within = tl.program_id(0) % (_TILES_PER_GROUP * num_blocks)
    tiles_in_group = tl.minimum(most_tiles - group * _TILES_PER_GROUP, _TILES_PER_GROUP)
    tile = group * _TILES_PER_GROUP + within % tiles_in_group
    first_output = within // tiles_in_group * BLOCK_N
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
    """Store some outputs of a tile's pairs into their rows of out."""
    # Padding gets an index past the number of pairs, for which nothing is stored.
    valid_pairs = tl.where(tl.arange(0, BLOCK_M) < number, pairs, num_pairs)
    store_epilogue(
        out, None, None, y, up, None, first_output, valid_pairs, NUM_OUTPUTS, num_pairs, NUM_OUTPUTS, 0, 0,
        out.dtype.element_ty, ACTIVATION,
    )  # fmt: skip
