"""Divides a step's attention into units of work, on the host: tiles of query tokens, times splits of their keys.

Every key-value head computes all units. How work is divided changes the time it takes, never a bit of the result: keys
are walked in splits of SPLIT positions counted from 0, whether one unit walks all of a tile's splits or each split has
a unit of its own.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from archerfish.ops.arrays import Ints, IntTable
from archerfish.ops.signatures import MAX_TREE_TOKENS

BLOCK_N = 64
"""Keys that are multiplied at once."""
SPLIT = 512
"""Positions whose weights are summed separately from others. Both change bits: they are the same for every kernel."""

UNIT_FIELDS = 8
"""Fields of a unit, a row of int32: the row of the block table; the first query token within the step, the number of
query tokens, the position of the first; the first split of keys, the end of the splits; the number of units that share
the tile, each with some of its splits (1: this one has all); the index of the tile's first partial result, of which
there is one for each token of each split."""

_TURNS = 4
"""Units per program, where units differ in length."""
_MOST_SMALL_TILES = 2
"""Chunks with more tokens than this many small tiles hold are divided into large ones."""


@dataclass(frozen=True, slots=True)
class TileCut:
    """How one list of units is divided."""

    num_tokens: int
    """Query tokens of a tile."""
    num_units: int
    """Number of units of equal length that keep every program busy once."""
    shares_splits: bool = False
    """A shared tile has a unit for each split, however many these are."""


@dataclass(frozen=True, slots=True)
class Cut:
    """How finely work is divided."""

    small: TileCut
    large: TileCut
    most_partials: int
    """Capacity for partial results. As many tiles as fit are shared, those with most keys first."""


class Units(NamedTuple):
    """The two lists of a step, [n, UNIT_FIELDS] each, long units first."""

    small: IntTable
    large: IntTable


class ChunkColumns(NamedTuple):
    """Chunks by column: row of the block table, first position, length, first query token."""

    rows: Ints
    starts: Ints
    lengths: Ints
    query_starts: Ints

    def with_lines(self, depths: Ints) -> "ChunkColumns":
        """Return each token of a tree as a chunk of its own, given depths [T] of a step's tokens; -1 outside of
        trees."""
        is_tree = depths[self.query_starts] >= 0
        counts = np.where(is_tree, self.lengths, 1)
        which = np.repeat(np.arange(len(counts)), counts)
        tokens = self.query_starts[which] + _count_up(counts)
        return ChunkColumns(
            self.rows[which],
            self.starts[which] + np.maximum(depths[tokens], 0),
            np.where(is_tree, 1, self.lengths)[which],
            tokens,
        )


class _Tiles(NamedTuple):
    """Tiles of query tokens by column."""

    rows: Ints
    first_tokens: Ints
    num_tokens: Ints
    positions: Ints
    oldest: Ints
    """Position of the first key that any of the tokens attends to."""

    @property
    def ends(self) -> Ints:
        return self.positions + self.num_tokens

    @property
    def first_splits(self) -> Ints:
        return self.oldest // SPLIT

    @property
    def end_splits(self) -> Ints:
        return -(-self.ends // SPLIT)

    def taken(self, indices: Ints) -> "_Tiles":
        return _Tiles(*(column[indices] for column in self))


def attention_units(rows: Ints, starts: Ints, lengths: Ints, query_starts: Ints, window: int | None, cut: Cut) -> Units:
    """Return the units of chunks, given their rows of the block table, first positions, lengths and first query
    tokens."""
    chunks = _Tiles(rows, query_starts, lengths, starts, starts)
    small = lengths <= _MOST_SMALL_TILES * cut.small.num_tokens
    if small.all():  # True for most steps, and each costs the host time.
        return Units(_units(chunks, cut.small, window, cut.most_partials), np.zeros((0, UNIT_FIELDS), np.int32))
    return Units(
        *(
            _units(chunks.taken(np.flatnonzero(chosen)), tile, window, cut.most_partials)
            for chosen, tile in ((small, cut.small), (~small, cut.large))
        )
    )


def most_units(num_tokens: int, num_chunks: int, cut: Cut) -> int:
    """Return the most units that either list of a step can have."""
    most_lines = num_chunks * MAX_TREE_TOKENS
    return min(num_tokens, most_lines + num_tokens // cut.small.num_tokens) + cut.most_partials


def _tiles(chunks: _Tiles, tokens_per_tile: int, window: int | None) -> _Tiles:
    """Divide chunks into tiles; the remainder is in the last one."""
    if chunks.num_tokens.max(initial=0) == 1:
        return chunks._replace(oldest=_oldest(chunks.positions, window))
    num_tiles = -(-chunks.num_tokens // tokens_per_tile)
    before = _count_up(num_tiles) * tokens_per_tile
    whole = chunks.taken(np.repeat(np.arange(len(num_tiles)), num_tiles))
    positions = whole.positions + before
    return _Tiles(
        whole.rows,
        whole.first_tokens + before,
        np.minimum(whole.num_tokens - before, tokens_per_tile),
        positions,
        _oldest(positions, window),
    )


def _oldest(positions: Ints, window: int | None) -> Ints:
    return np.zeros_like(positions) if window is None else np.maximum(positions - window + 1, 0)


def _units(chunks: _Tiles, cut: TileCut, window: int | None, most_partials: int) -> IntTable:
    tiles = _tiles(chunks, cut.num_tokens, window)
    tiles = tiles.taken(np.argsort(tiles.oldest - tiles.ends, kind="stable"))
    num_splits = tiles.end_splits - tiles.first_splits
    partials = np.cumsum(tiles.num_tokens * num_splits)
    share = _share(num_splits, cut.num_units)
    shared = (num_splits > share) & (partials <= most_partials)
    share = 1 if cut.shares_splits else share
    num_arrivals = np.where(shared, -(-num_splits // share), 1)
    first_partials = np.where(shared, partials - tiles.num_tokens * num_splits, 0)

    which = np.repeat(np.arange(len(num_splits)), num_arrivals)
    unit = tiles.taken(which)
    first_splits = unit.first_splits + _count_up(num_arrivals) * share
    end_splits = np.where(shared[which], np.minimum(first_splits + share, unit.end_splits), unit.end_splits)
    columns = (
        *(unit.rows, unit.first_tokens, unit.num_tokens, unit.positions),
        *(first_splits, end_splits, num_arrivals[which], first_partials[which]),
    )
    num_keys = np.minimum(unit.ends, end_splits * SPLIT) - np.maximum(unit.oldest, first_splits * SPLIT)
    # Units that start last should be short.
    return np.stack(columns, axis=1)[np.argsort(-num_keys, kind="stable")].astype(np.int32)


def _share(num_splits: Ints, num_units: int) -> int:
    """Return the most splits of a unit. Tiles with more are shared by several units, others have one.

    If all tiles are shared, units are alike, and every program has one. Otherwise each program has several: one with a
    long unit has few others.
    """
    total = num_splits.sum()
    alike, unlike = (max(1, -(-total // max(1, turns * num_units))) for turns in (1, _TURNS))
    return int(alike if (num_splits > alike).all() else unlike)


def _count_up(counts: Ints) -> Ints:
    """Return 0, 1, ... below each count, one after the other."""
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    return np.arange(total) - np.repeat(ends - counts, counts)
