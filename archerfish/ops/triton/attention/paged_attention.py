"""Paged attention on a GPU: tiles for a model's heads, buffers for partial results, and launches."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache as cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from archerfish.ops.arrays import IntTable
from archerfish.ops.signatures import Chunks, LayerCache
from archerfish.ops.triton.attention.attention_kernel import attend_kernel
from archerfish.ops.triton.attention.attention_schedule import (
    BLOCK_N,
    SPLIT,
    ChunkColumns,
    Cut,
    TileCut,
    attention_units,
)
from archerfish.ops.triton.attention.kv_cache import check_cache
from archerfish.ops.triton.runtime import INTERPRETED, launch

_LOG2_E = math.log2(math.e)
_DTYPES = ("bfloat16", "float16")
_HEAD_DIMS = (16, 32, 64, 128, 256)
_EAGER_PARTIALS = 4096


def why_not_attention(dtype: str, head_dim: int | None, block_size: int | None) -> str | None:
    """Return the reason why these kernels cannot run a model, or None. Pass None for what is not known yet."""
    if dtype not in _DTYPES:
        return f"they support {' and '.join(_DTYPES)}, not {dtype}"
    if head_dim is not None and head_dim not in _HEAD_DIMS:
        return f"heads of {head_dim} are not a power of two from 16 to 256"
    if block_size is not None and (block_size < 1 or block_size % 16):
        return f"--block-size {block_size} is not a multiple of 16"
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """How the kernel is launched for one kind of tile. None of this changes a bit."""

    rows: int
    programs_per_processor: int
    """Programs that a multiprocessor's registers and shared memory hold."""
    num_warps: int
    num_stages: int
    fold_tokens: int
    """Tokens whose partial results are folded at once: few, so that many loads are in flight."""
    fold_ahead: int
    """Splits whose partial results are loaded at once."""
    is_small: bool
    """Keys are the left operand of GEMMs, since eight rows suffice for the right one; and a unit that shares its
    queries may have several splits, for which large tiles lack registers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadShape:
    """The heads of a layer, and the tiles that suit them."""

    num_heads: int
    num_kv_heads: int
    head_dim: int

    @property
    def repeat(self) -> int:
        """Query heads that share a key-value head."""
        return self.num_heads // self.num_kv_heads

    @property
    def rows_per_token(self) -> int:
        """Rows of a tile that belong to a query token: its heads of one key-value head, padded to a power of two."""
        return 1 << (self.repeat - 1).bit_length()

    def small(self, num_tokens: int, num_processors: int) -> Tile:
        """Return the tile for chunks of few tokens: wide programs, which end soon, until every multiprocessor has
        work."""
        return self.narrow if num_tokens * self.num_kv_heads > num_processors else self.wide

    @property
    def wide(self) -> Tile:
        return Tile(
            rows=self._few_rows,
            programs_per_processor=2 if self.head_dim <= 128 else 1,
            num_warps=self._num_warps(self._few_rows),
            num_stages=3,
            fold_tokens=1,
            fold_ahead=self._few_ahead,
            is_small=True,
        )

    @property
    def narrow(self) -> Tile:
        # Nothing is loaded ahead: a program that waits for memory leaves the multiprocessor to three others.
        return Tile(
            rows=self._few_rows,
            programs_per_processor=4,
            num_warps=2 if self.head_dim <= 128 else 4,
            num_stages=1,
            fold_tokens=1,
            fold_ahead=self._few_ahead,
            is_small=True,
        )

    @property
    def large(self) -> Tile:
        # Sums of wide heads fill the registers with half the rows.
        rows = max(128 if self.head_dim <= 128 else 64, self.rows_per_token)
        return Tile(
            rows=rows,
            programs_per_processor=1,
            num_warps=self._num_warps(rows),
            num_stages=4 if self.head_dim <= 128 else 2,
            fold_tokens=rows // self.rows_per_token,
            fold_ahead=1,
            is_small=False,
        )

    def cut(self, num_processors: int, most_partials: int) -> Cut:
        """Return how finely to divide a step's work for a GPU of so many multiprocessors."""
        small, large = (
            TileCut(
                tile.rows // self.rows_per_token,
                -(-tile.programs_per_processor * num_processors // self.num_kv_heads),
                shares_splits=not tile.is_small,
            )
            for tile in (self.wide, self.large)
        )
        return Cut(small, large, most_partials)

    @property
    def _few_rows(self) -> int:
        return max(8, self.rows_per_token)

    @property
    def _few_ahead(self) -> int:
        return 8 if self.rows_per_token <= 16 else 1

    def _num_warps(self, rows: int) -> int:
        return 8 if self.head_dim > 128 or rows * self.head_dim >= 64 * 128 else 4


@dataclass(frozen=True, slots=True, eq=False)
class UnitList:
    """Units of one kind of tile, at the same address for every step that replays a graph."""

    units: Tensor
    """[capacity, UNIT_FIELDS] int32."""
    count: Tensor
    """[1] int32: the number of units."""


@dataclass(frozen=True, slots=True, eq=False)
class AttentionWork:
    """The units of a step; None where it has none of a kind, for which nothing is launched."""

    small: UnitList | None
    large: UnitList | None


class DeviceTreePaths(NamedTuple):
    """Locations of the keys of tree tokens, as in `Trees`."""

    depths: Tensor
    paths: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class AttentionScratch:
    """Partial results of units that share a tile. One buffer serves all layers, whose launches follow each other."""

    weighted: Tensor
    """[partials, G, rows per token, D] float32."""
    peaks: Tensor
    """[partials, G, rows per token] float32."""
    totals: Tensor
    """[partials, G, rows per token] float32."""
    counters: Tensor
    """[partials, G] int32: number of units that have arrived. Zero before and after every launch."""

    @classmethod
    def of(cls, shape: HeadShape, most_partials: int, device: torch.device) -> "AttentionScratch":
        size = (most_partials, shape.num_kv_heads, shape.rows_per_token)
        return cls(
            weighted=torch.empty((*size, shape.head_dim), dtype=torch.float32, device=device),
            peaks=torch.empty(size, dtype=torch.float32, device=device),
            totals=torch.empty(size, dtype=torch.float32, device=device),
            counters=torch.zeros(size[:2], dtype=torch.int32, device=device),
        )


@dataclass(frozen=True, slots=True)
class Scoring:
    """What is done to the dot product of a query and a key."""

    scale: float
    window: int | None
    softcap: float | None

    @property
    def factors(self) -> tuple[float, float]:
        """Factors of a dot product before it is capped, and of a score to be an exponent of two."""
        if self.softcap is None:
            return 1.0, self.scale * _LOG2_E
        return 2 * _LOG2_E * self.scale / self.softcap, self.softcap * _LOG2_E


def attend_into(
    out: Tensor,
    q: Tensor,
    cache: LayerCache,
    work: AttentionWork,
    table: Tensor,
    scratch: AttentionScratch,
    scoring: Scoring,
    lines: DeviceTreePaths | None = None,
) -> None:
    """Attend with q [T, H, D] into out, both with any stride between tokens. Tokens of no unit are left unchanged.

    Units refer to rows of the table [rows, blocks] int32. Nothing is read from the device, so a graph can be captured.
    Trees' paths are passed to small units only; a large one never has a tree's token.
    """
    _check(q, cache, scoring)
    shape = _head_shape(q, cache)
    processors = num_processors(q.device)
    for units, tile in ((work.large, shape.large), (work.small, shape.small(len(q), processors))):
        if units is None:
            continue
        launch(
            attend_kernel,
            (tile.programs_per_processor * processors,),
            *(out, out.stride(0), q, q.stride(0)),
            *(cache.keys, cache.values, cache.keys.stride(0), table, table.stride(0)),
            *(units.units, units.count),
            *(scratch.weighted, scratch.peaks, scratch.totals, scratch.counters),
            *(lines if lines is not None and tile.is_small else (None, None)),
            *(scoring.window or 0, *scoring.factors),
            KV_HEADS=shape.num_kv_heads,
            REPEAT=shape.repeat,
            ROWS_PER_TOKEN=shape.rows_per_token,
            D=shape.head_dim,
            BLOCK_SIZE=cache.keys.shape[1],
            BLOCK_M=tile.rows,
            BLOCK_N=BLOCK_N,
            SPLIT=SPLIT,
            FOLD_TOKENS=tile.fold_tokens,
            FOLD_AHEAD=tile.fold_ahead,
            WINDOWED=scoring.window is not None,
            CAPPED=scoring.softcap is not None,
            SWAP_AB=tile.is_small,
            MULTI_SPLIT=tile.is_small,
            num_warps=tile.num_warps,
            num_stages=tile.num_stages,
            enable_fp_fusion=False,
        )


def attend(
    q: Tensor,
    cache: LayerCache,
    chunks: Chunks,
    group: int,
    scale: float,
    window: int | None,
    softcap: float | None,
) -> Tensor:
    shape = _head_shape(q, cache)
    step = chunks.prepared(_preparation(shape, window))
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    lines = None if chunks.trees is None else DeviceTreePaths(chunks.trees.depths, chunks.trees.paths)
    scoring = Scoring(scale, window, softcap)
    attend_into(out, q, cache, step.work, chunks.tables[group], step.scratch, scoring, lines)
    return out


@cache
def num_processors(device: torch.device) -> int:
    """Return the number of multiprocessors. The interpreter has few, so that programs take several turns."""
    return 3 if INTERPRETED else torch.cuda.get_device_properties(device).multi_processor_count


@dataclass(frozen=True, slots=True, eq=False)
class _Step:
    work: AttentionWork
    scratch: AttentionScratch


@cache
def _preparation(shape: HeadShape, window: int | None) -> Callable[[Chunks], _Step]:
    """Return one function per kind of layer, for `Chunks.prepared`: its result serves all layers of the kind."""

    def prepare(chunks: Chunks) -> _Step:
        device, lengths = chunks.lengths.device, chunks.host_lengths
        of_chunks = ChunkColumns(
            np.arange(len(lengths)), chunks.host_ends - lengths, lengths, np.cumsum(lengths) - lengths
        )
        if chunks.trees is not None:
            of_chunks = of_chunks.with_lines(chunks.trees.host_depths)
        units = attention_units(*of_chunks, window, shape.cut(num_processors(device), _EAGER_PARTIALS))
        work = AttentionWork(_on_device(units.small, device), _on_device(units.large, device))
        return _Step(work, AttentionScratch.of(shape, _EAGER_PARTIALS, device))

    return prepare


def _on_device(units: IntTable, device: torch.device) -> UnitList | None:
    if not len(units):
        return None
    return UnitList(torch.from_numpy(units).to(device), torch.tensor([len(units)], dtype=torch.int32, device=device))


def _head_shape(q: Tensor, cache: LayerCache) -> HeadShape:
    return HeadShape(num_heads=q.shape[1], num_kv_heads=cache.keys.shape[2], head_dim=q.shape[2])


def _check(q: Tensor, cache: LayerCache, scoring: Scoring) -> None:
    check_cache(cache, q.dtype)
    reason = why_not_attention(str(q.dtype).removeprefix("torch."), q.shape[2], cache.keys.shape[1])
    assert reason is None, f"Triton attention: {reason}"
    assert q.stride()[1:] == (q.shape[2], 1), "heads of a query token must be contiguous"
    assert scoring.scale > 0, (
        f"a scale of {scoring.scale} must be positive, because scores are compared before they are scaled"
    )
    assert scoring.softcap is None or scoring.softcap > 0, f"a cap of {scoring.softcap} must be positive"
