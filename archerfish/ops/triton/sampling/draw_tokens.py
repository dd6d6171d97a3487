"""Draws next tokens by Triton kernels, each row with its own parameters.

Two launches, whatever the parameters. The host decides the kind of a step from all rows' parameters, so that nothing
waits for the device; a row draws the same token in steps of every kind that supports its parameters.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Self

import numpy as np
import torch
import triton
from torch import Tensor

from archerfish.ops.signatures import DRAW_ROW, Drawn, DrawRows
from archerfish.ops.triton.runtime import launch, summing_vector_of
from archerfish.ops.triton.sampling import draw_kernels

MOST_TOKENS = 1 << 19
"""Largest vocabulary: a program holds the largest logit of each group of tokens."""
WORDS = DRAW_ROW.itemsize // 4
"""32-bit words of a row's parameters, as kernels read them."""
_TILE = 2048


class Kind(IntEnum):
    """What rows of a step can request; each kind includes the ones before."""

    GREEDY = 0
    """The likeliest token."""
    PLAIN = 1
    """A temperature without filters."""
    FILTERED = 2
    """All parameters."""


def kind_of(rows: DrawRows) -> Kind:
    """Return the least kind that supports all rows."""
    draws = rows["temperature"] != 0.0
    filters = draws & ((rows["top_p"] < 1.0) | (rows["min_p"] > 0.0) | (rows["top_k"] > 0))
    return Kind.FILTERED if filters.any() else Kind.PLAIN if draws.any() else Kind.GREEDY


@dataclass(frozen=True, slots=True, eq=False)
class DrawScratch:
    """Buffers between the first launch and the second. Their content is undefined afterwards."""

    peaks: Tensor
    """[rows, tiles] float32: the largest logit of each tile."""
    scores: Tensor
    """[rows, tiles] float32: the best score of each tile."""
    tokens: Tensor
    """[rows, tiles] int32: the token of that score."""
    totals: Tensor
    """[rows, tiles] float32: the total weight of a tile's tokens, relative to its largest."""
    maxima: Tensor
    """[rows, groups] float32: the largest logit of each group."""
    groups: Tensor
    """[rows, groups] int32: the selected groups."""

    @classmethod
    def allocate(cls, num_rows: int, vocabulary: int, device: torch.device | str) -> Self:
        num_tiles = triton.cdiv(vocabulary, _TILE)
        num_groups = num_tiles * _TILE // _group(vocabulary)

        def empty(width: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.empty(num_rows, width, dtype=dtype, device=device)

        return cls(
            peaks=empty(num_tiles),
            scores=empty(num_tiles),
            tokens=empty(num_tiles, torch.int32),
            totals=empty(num_tiles),
            maxima=empty(num_groups),
            groups=empty(num_groups, torch.int32),
        )


def draw(logits: Tensor, rows: DrawRows) -> Drawn:
    on_device = device_rows(rows).to(logits.device)
    tokens = torch.empty(len(logits), dtype=torch.int64, device=logits.device)
    peaks = torch.empty(len(logits), dtype=torch.float32, device=logits.device)
    scratch = DrawScratch.allocate(len(logits), logits.shape[1], logits.device)
    draw_into(tokens, peaks, logits, on_device, kind_of(rows), scratch)
    return Drawn(tokens, peaks)


def device_rows(rows: DrawRows) -> Tensor:
    """Return the parameters in the layout that kernels read, on the host: int32 [rows, WORDS]."""
    return torch.from_numpy(np.ascontiguousarray(rows).view(np.int32).reshape(-1, WORDS))


def draw_into(tokens: Tensor, peaks: Tensor, logits: Tensor, rows: Tensor, kind: Kind, scratch: DrawScratch) -> None:
    """Draw tokens [rows] int64 and store peaks [rows] float32. Logits of any float type are taken as float32.

    `rows` are on the device, in the layout of `device_rows`. Rows whose tokens are not used may have any parameters and
    logits.
    """
    num_rows, vocabulary = logits.shape
    num_tiles = triton.cdiv(vocabulary, _TILE)
    assert 0 < vocabulary <= MOST_TOKENS, f"a vocabulary of {vocabulary} is more than {MOST_TOKENS}"
    assert scratch.peaks.shape[0] >= num_rows and scratch.peaks.shape[1] == num_tiles, "the scratch has another shape"
    assert rows.shape[1] == WORDS and rows.is_contiguous()
    vector = summing_vector_of(vocabulary, logits)
    group = _group(vocabulary)
    common = {
        "VOCABULARY": vocabulary,
        "NUM_TILES": num_tiles,
        "GROUP": group,
        "VECTOR": vector,
        "FILTERS": kind == Kind.FILTERED,
        "enable_fp_fusion": False,
    }
    partial = (scratch.peaks, scratch.scores, scratch.tokens, scratch.totals, scratch.maxima)
    given = (logits, rows, logits.stride(0) // vector)
    launch(
        draw_kernels.topk_scan_kernel,
        (num_rows, num_tiles),
        *(*partial, *given),
        TILE=_TILE,
        DRAWS=kind != Kind.GREEDY,
        num_warps=4,
        **common,
    )
    num_groups = num_tiles * _TILE // group
    launch(
        draw_kernels.sample_kernel,
        (num_rows,),
        *(tokens, peaks, *partial, scratch.groups, *given),
        TILES=triton.next_power_of_2(num_tiles),
        NUM_GROUPS=num_groups,
        GROUPS=triton.next_power_of_2(num_groups),
        CHUNK=_TILE // group,
        num_warps=8 if kind == Kind.FILTERED else 1,
        **common,
    )


def _group(vocabulary: int) -> int:
    """Return the number of tokens in a group: so many that the largest logits of all groups fit into registers."""
    return 16 if vocabulary <= MOST_TOKENS // 2 else 32
