"""How GEMMs of 16-bit rows are divided: into splits of K, which change bits, and into tiles, which do not."""

import itertools
from functools import cache
from typing import Literal, NamedTuple

import triton

from archerfish.ops.triton.runtime import GemmShape, stored_tiles

_FEW_OUTPUTS = 4096
_SPLIT_K = 4
_LONG = 2048
"""Inputs up to which one program walks K fast enough."""
_FEWEST_ROWS = 8
"""Fewest rows of a tile."""
_FEW_ROWS_OF_SPLITS = 32
"""Rows up to which the splits of K are walked by the warps of one program."""
_PROCESSORS = 132
"""Multiprocessors of the GPU that defaults are tuned for."""
_DEPTH = 16
"""Inputs that a tensor core adds up at once."""
_SMALL = 10 << 20
"""Bytes of a matrix that is read faster than a kernel starts."""
_STAGED = 220 << 10
"""Bytes of weights and rows in flight to one program: somewhat less than a multiprocessor's shared memory."""

SplitKMode = Literal["warps", "programs", "serial"]


class FloatTiles(NamedTuple):
    """How a launch is divided. None of it changes bits."""

    outputs: int
    inputs: int
    """Inputs of one step, in each split of K."""
    rows: int
    num_warps: int
    num_stages: int
    prefetch_bytes: int = 0
    """Bytes of each output's weights that are prefetched before the rows are ready, besides the first tile."""
    late_trigger: bool = False
    """Allow the next kernel to start only when this one has its rows: earlier, it would take resources from this
    one."""
    split_k_mode: SplitKMode = "warps"
    """What walks the splits of K: warps of a program, for few rows; programs, of which the last to arrive adds them up,
    where there are too few tiles for all multiprocessors; or one program, serially."""


def num_k_splits(num_outputs: int, num_inputs: int) -> int:
    """Return the number of splits of K. The matrix alone decides, because it changes bits."""
    return _SPLIT_K if num_outputs < _FEW_OUTPUTS and num_inputs % (_SPLIT_K * _DEPTH) == 0 else 1


def default_tiles(num_rows: int, num_outputs: int, num_inputs: int) -> FloatTiles:
    """Return tiles that are good on an H200: measured among a model's other kernels, not derived."""
    splits = num_k_splits(num_outputs, num_inputs)
    if splits > 1:
        tiles = _split_k_tiles(num_rows, num_outputs, num_inputs)
    elif num_rows > _FEWEST_ROWS:
        rows = min(64, triton.next_power_of_2(num_rows))
        tiles = FloatTiles(64, 128, rows, 4, 4 if rows > 32 else 5, 256)
    elif num_outputs >= 4 * _FEW_OUTPUTS:
        tiles = FloatTiles(32, 512, _FEWEST_ROWS, 2, 2, 512 if num_outputs < 16 * _FEW_OUTPUTS else 0)
    elif num_outputs * num_inputs * 2 < _SMALL:
        tiles = FloatTiles(16, 1024, _FEWEST_ROWS, 1, 2, 512, late_trigger=True)
    elif num_outputs * num_inputs * 2 < 4 * _SMALL:
        tiles = FloatTiles(16, 256, _FEWEST_ROWS, 1, 6, 512)
    else:
        tiles = FloatTiles(16, 512, _FEWEST_ROWS, 1, 3, 1024)
    return tiles._replace(inputs=min(tiles.inputs, max(_DEPTH, triton.next_power_of_2(num_inputs // splits))))


def _split_k_tiles(num_rows: int, num_outputs: int, num_inputs: int) -> FloatTiles:
    """Return tiles for a matrix whose K is split: as many programs as there are multiprocessors, and no more."""
    if num_rows <= _FEWEST_ROWS:
        if num_outputs > 16 * _PROCESSORS:
            return FloatTiles(32, 256, _FEWEST_ROWS, _SPLIT_K, 2, 512)
        inputs, stages = (128, 4) if num_inputs <= num_outputs else (256, 3)
        return FloatTiles(16, inputs, _FEWEST_ROWS, _SPLIT_K, stages, 512, late_trigger=True)
    if num_rows <= _FEW_ROWS_OF_SPLITS:
        return FloatTiles(16, 128, triton.next_power_of_2(num_rows), _SPLIT_K, 4, 512, late_trigger=True)

    def num_tiles(outputs: int, rows: int) -> int:
        return -(-num_outputs // outputs) * -(-num_rows // rows)

    for rows in (32, 64):
        if num_tiles(64, rows) * _SPLIT_K <= _PROCESSORS:
            return FloatTiles(64, 128, rows, 4, 4, split_k_mode="programs")
    if num_inputs > _LONG:
        if num_tiles(64, 128) * _SPLIT_K <= _PROCESSORS:
            return FloatTiles(64, 64, 128, 4, 4, split_k_mode="programs")
        if num_tiles(128, 128) * _SPLIT_K <= _PROCESSORS:
            return FloatTiles(128, 64, 128, 8, 4, split_k_mode="programs")
    for rows in (32, 64):
        if num_tiles(64, rows) <= _PROCESSORS:
            return FloatTiles(64, 128, rows, 4, 4, split_k_mode="serial")
    if num_tiles(64, 64) <= 2 * _PROCESSORS:
        return FloatTiles(64, 128, 64, 4, 3, split_k_mode="serial")
    return FloatTiles(128, 64, 128, 8, 4, split_k_mode="serial")


def candidate_tiles(num_rows: int, num_outputs: int, num_inputs: int) -> list[FloatTiles]:
    """Return tiles that are worth measuring, the default first."""
    default = default_tiles(num_rows, num_outputs, num_inputs)
    splits = num_k_splits(num_outputs, num_inputs)
    by_warps = default.split_k_mode == "warps"
    candidates = [default]
    for outputs, inputs, warps, stages in itertools.product(
        (16, 32, 64, 128), (64, 128, 256, 512), (1, 2, 4, 8), (2, 3, 4, 6)
    ):
        staged = 2 * (outputs + default.rows) * inputs * (splits if by_warps else 1)
        tiles = default._replace(outputs=outputs, inputs=inputs, num_warps=warps, num_stages=stages)
        if splits == 1:
            is_fit = outputs * default.rows <= 1024 * warps  # For the sums of large tiles to fit into registers.
        else:
            is_fit = warps == splits if by_warps else outputs >= 64 and warps == outputs // 16
        # The first tile has a buffer of its own.
        fills = _STAGED // 4 <= staged * (stages + 1) <= _STAGED
        if is_fit and fills and inputs * splits <= num_inputs and tiles != default:
            candidates.append(tiles)
    return candidates


@cache
def chosen_tiles(num_rows: int, num_outputs: int, num_inputs: int, is_gated: bool) -> FloatTiles:
    """Return the tiles that were measured to be the fastest on this GPU, or the default."""
    candidates = candidate_tiles(num_rows, num_outputs, num_inputs)
    return stored_tiles(GemmShape(num_rows, num_outputs, num_inputs, is_gated), candidates) or candidates[0]
