"""Paged attention by Triton kernels, and the KV cache that it reads."""

from archerfish.ops.triton.attention.attention_schedule import (
    UNIT_FIELDS,
    ChunkColumns,
    Units,
    attention_units,
    most_units,
)
from archerfish.ops.triton.attention.kv_cache import HeadSteps, copy_blocks, move_kv, place_into, write_kv
from archerfish.ops.triton.attention.paged_attention import (
    AttentionScratch,
    HeadShape,
    Lines,
    Scoring,
    UnitList,
    Work,
    attend,
    attend_into,
    num_processors,
    why_not_attention,
)

__all__ = [
    "UNIT_FIELDS",
    "AttentionScratch",
    "ChunkColumns",
    "HeadShape",
    "HeadSteps",
    "Lines",
    "Scoring",
    "UnitList",
    "Units",
    "Work",
    "attend",
    "attend_into",
    "attention_units",
    "copy_blocks",
    "most_units",
    "move_kv",
    "num_processors",
    "place_into",
    "why_not_attention",
    "write_kv",
]
