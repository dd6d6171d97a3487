"""The draw of next tokens by Triton kernels, each row by its own parameters. Knows tensors, not how one is drawn.

Two launches, whatever rows ask for. What a step needs to be able to do is its kind, said on the host, so that nothing
waits for the device; a row draws the same token in steps of every kind that can do what it asks.
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
"""Of a vocabulary: a program holds the largest logit of each group of them."""
WORDS = DRAW_ROW.itemsize // 4
"""32-bit numbers of a row's parameters, as the device reads them."""
_TILE = 2048


class Kind(IntEnum):
    """What rows of a step may ask for; each can do what the one before can."""

    GREEDY = 0
    """The likeliest token."""
    PLAIN = 1
    """A temperature, and no filter."""
    FILTERED = 2
    """Anything."""


def kind_of(rows: DrawRows) -> Kind:
    """The least that can do what all rows ask."""
    draws = rows["temperature"] != 0.0
    filters = draws & ((rows["top_p"] < 1.0) | (rows["min_p"] > 0.0) | (rows["top_k"] > 0))
    return Kind.FILTERED if filters.any() else Kind.PLAIN if draws.any() else Kind.GREEDY


@dataclass(frozen=True, slots=True, eq=False)
class DrawScratch:
    """Room for what the first launch leaves to the second. What is in it means nothing afterwards."""

    peaks: Tensor
    """[rows, tiles] float32: the largest logit of each tile."""
    scores: Tensor
    """[rows, tiles] float32: the best score of each."""
    tokens: Tensor
    """[rows, tiles] int32: whose it is."""
    totals: Tensor
    """[rows, tiles] float32: what its tokens weigh beside its largest."""
    maxima: Tensor
    """[rows, groups] float32: the largest logit of each group."""
    groups: Tensor
    """[rows, groups] int32: those that matter."""

    @classmethod
    def room_for(cls, num_rows: int, vocabulary: int, device: torch.device | str) -> Self:
        num_tiles = triton.cdiv(vocabulary, _TILE)
        num_groups = num_tiles * _TILE // _group(vocabulary)

        def room(width: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.empty(num_rows, width, dtype=dtype, device=device)

        return cls(
            peaks=room(num_tiles),
            scores=room(num_tiles),
            tokens=room(num_tiles, torch.int32),
            totals=room(num_tiles),
            maxima=room(num_groups),
            groups=room(num_groups, torch.int32),
        )


def draw(logits: Tensor, rows: DrawRows) -> Drawn:
    on_device = device_rows(rows).to(logits.device)
    tokens = torch.empty(len(logits), dtype=torch.int64, device=logits.device)
    peaks = torch.empty(len(logits), dtype=torch.float32, device=logits.device)
    scratch = DrawScratch.room_for(len(logits), logits.shape[1], logits.device)
    draw_into(tokens, peaks, logits, on_device, kind_of(rows), scratch)
    return Drawn(tokens, peaks)


def device_rows(rows: DrawRows) -> Tensor:
    """The parameters as kernels read them, still on the host: int32 [rows, WORDS]."""
    return torch.from_numpy(np.ascontiguousarray(rows).view(np.int32).reshape(-1, WORDS))


def draw_into(tokens: Tensor, peaks: Tensor, logits: Tensor, rows: Tensor, kind: Kind, scratch: DrawScratch) -> None:
    """tokens [rows] int64, peaks [rows] float32. logits may be of any float type and are taken as float32.

    rows as device_rows gives them, on the device. Rows that nobody waits for may have any parameters and logits.
    """
    num_rows, vocabulary = logits.shape
    num_tiles = triton.cdiv(vocabulary, _TILE)
    assert 0 < vocabulary <= MOST_TOKENS, f"a vocabulary of {vocabulary} is more than {MOST_TOKENS}"
    assert scratch.peaks.shape[0] >= num_rows and scratch.peaks.shape[1] == num_tiles, "the scratch is of another shape"
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
        draw_kernels.survey_kernel,
        (num_rows, num_tiles),
        *(*partial, *given),
        TILE=_TILE,
        DRAWS=kind != Kind.GREEDY,
        num_warps=4,
        **common,
    )
    num_groups = num_tiles * _TILE // group
    launch(
        draw_kernels.settle_kernel,
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
    """How many tokens go by their largest logit: so many that the largest ones fit into registers."""
    return 16 if vocabulary <= MOST_TOKENS // 2 else 32
