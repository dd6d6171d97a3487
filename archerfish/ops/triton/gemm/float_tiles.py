"""How products of 16-bit rows are cut: into parts, which enter the bits, and into tiles, which do not."""

from functools import cache
from itertools import product
from typing import Literal, NamedTuple

import triton

from archerfish.ops.triton.runtime import Product, stored

_FEW_OUTPUTS = 4096
_PARTS = 4
_LONG = 2048
"""Inputs that one program walks soon enough."""
_FEWEST_ROWS = 8
"""Of a tile."""
_FEW_ROWS_OF_PARTS = 32
"""Up to so many, the parts of K are walked by the warps of a program."""
_PROCESSORS = 132
"""Of the GPU that defaults are made for."""
_DEPTH = 16
"""Inputs that a tensor core adds up at once."""
_SMALL = 10 << 20
"""Bytes of a matrix that is read faster than a kernel starts."""
_STAGED = 220 << 10
"""Bytes of weights and rows that may be on their way to one program: somewhat less than a multiprocessor holds."""

PartsBy = Literal["warps", "programs", "turns"]


class FloatTiles(NamedTuple):
    """How a launch is cut. None of it enters the bits."""

    outputs: int
    inputs: int
    """Of each part of K."""
    rows: int
    num_warps: int
    num_stages: int
    fetched_ahead: int = 0
    """Bytes of each output's weights that are asked for before the rows are there, beside the first tile."""
    starts_next_late: bool = False
    """The next kernel is let in only when this one has its rows: it would take room that few programs need."""
    parts_by: PartsBy = "warps"
    """Who walks the parts of K, where it is cut: warps of a program, for few rows; programs, of which the last to end
    adds them up, where there are too few tiles for all processors; or one program in turn."""


def num_parts(num_outputs: int, num_inputs: int) -> int:
    """Into how many parts K is cut: fixed by the matrix, because it enters the bits."""
    return _PARTS if num_outputs < _FEW_OUTPUTS and num_inputs % (_PARTS * _DEPTH) == 0 else 1


def default_tiles(num_rows: int, num_outputs: int, num_inputs: int) -> FloatTiles:
    """Good on an H200. Which are best was measured, in the midst of a model's other kernels, not derived."""
    parts = num_parts(num_outputs, num_inputs)
    if parts > 1:
        tiles = _tiles_of_parts(num_rows, num_outputs, num_inputs)
    elif num_rows > _FEWEST_ROWS:
        rows = min(64, triton.next_power_of_2(num_rows))
        tiles = FloatTiles(64, 128, rows, 4, 4 if rows > 32 else 5, 256)
    elif num_outputs >= 4 * _FEW_OUTPUTS:
        tiles = FloatTiles(32, 512, _FEWEST_ROWS, 2, 2, 512 if num_outputs < 16 * _FEW_OUTPUTS else 0)
    elif num_outputs * num_inputs * 2 < _SMALL:
        tiles = FloatTiles(16, 1024, _FEWEST_ROWS, 1, 2, 512, starts_next_late=True)
    elif num_outputs * num_inputs * 2 < 4 * _SMALL:
        tiles = FloatTiles(16, 256, _FEWEST_ROWS, 1, 6, 512)
    else:
        tiles = FloatTiles(16, 512, _FEWEST_ROWS, 1, 3, 1024)
    return tiles._replace(inputs=min(tiles.inputs, max(_DEPTH, triton.next_power_of_2(num_inputs // parts))))


def _tiles_of_parts(num_rows: int, num_outputs: int, num_inputs: int) -> FloatTiles:
    """Of a matrix whose K is cut: as much at once as there are processors, and no more."""
    if num_rows <= _FEWEST_ROWS:
        if num_outputs > 16 * _PROCESSORS:
            return FloatTiles(32, 256, _FEWEST_ROWS, _PARTS, 2, 512)
        inputs, stages = (128, 4) if num_inputs <= num_outputs else (256, 3)
        return FloatTiles(16, inputs, _FEWEST_ROWS, _PARTS, stages, 512, starts_next_late=True)
    if num_rows <= _FEW_ROWS_OF_PARTS:
        return FloatTiles(16, 128, triton.next_power_of_2(num_rows), _PARTS, 4, 512, starts_next_late=True)

    def num_tiles(outputs: int, rows: int) -> int:
        return -(-num_outputs // outputs) * -(-num_rows // rows)

    for rows in (32, 64):
        if num_tiles(64, rows) * _PARTS <= _PROCESSORS:
            return FloatTiles(64, 128, rows, 4, 4, parts_by="programs")
    if num_inputs > _LONG:
        if num_tiles(64, 128) * _PARTS <= _PROCESSORS:
            return FloatTiles(64, 64, 128, 4, 4, parts_by="programs")
        if num_tiles(128, 128) * _PARTS <= _PROCESSORS:
            return FloatTiles(128, 64, 128, 8, 4, parts_by="programs")
    for rows in (32, 64):
        if num_tiles(64, rows) <= _PROCESSORS:
            return FloatTiles(64, 128, rows, 4, 4, parts_by="turns")
    if num_tiles(64, 64) <= 2 * _PROCESSORS:
        return FloatTiles(64, 128, 64, 4, 3, parts_by="turns")
    return FloatTiles(128, 64, 128, 8, 4, parts_by="turns")


def candidate_tiles(num_rows: int, num_outputs: int, num_inputs: int) -> list[FloatTiles]:
    """Cuts that are worth measuring, the default first."""
    default = default_tiles(num_rows, num_outputs, num_inputs)
    parts = num_parts(num_outputs, num_inputs)
    by_warps = default.parts_by == "warps"
    found = [default]
    for outputs, inputs, warps, stages in product((16, 32, 64, 128), (64, 128, 256, 512), (1, 2, 4, 8), (2, 3, 4, 6)):
        staged = 2 * (outputs + default.rows) * inputs * (parts if by_warps else 1)
        tiles = default._replace(outputs=outputs, inputs=inputs, num_warps=warps, num_stages=stages)
        if parts == 1:
            is_fit = outputs * default.rows <= 1024 * warps  # Of large tiles, for their sums to fit into registers.
        else:
            is_fit = warps == parts if by_warps else outputs >= 64 and warps == outputs // 16
        # The first tile has room of its own.
        fills = _STAGED // 4 <= staged * (stages + 1) <= _STAGED
        if is_fit and fills and inputs * parts <= num_inputs and tiles != default:
            found.append(tiles)
    return found


@cache
def chosen_tiles(num_rows: int, num_outputs: int, num_inputs: int, is_gated: bool) -> FloatTiles:
    """The fastest that was seen on this GPU, or the default where nobody looked."""
    candidates = candidate_tiles(num_rows, num_outputs, num_inputs)
    return stored(Product(num_rows, num_outputs, num_inputs, is_gated), candidates) or candidates[0]
