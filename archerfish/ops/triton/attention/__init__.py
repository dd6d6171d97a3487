"""Paged attention by Triton kernels, and the KV cache that it reads."""

from archerfish.ops.triton.attention.attention_schedule import (
    UNIT_FIELDS,
    ChunkColumns,
    Units,
    attention_units,
    most_units,
)
from archerfish.ops.triton.attention.kv_cache import (
    QkNormRope,
    copy_blocks,
    move_kv,
    qk_norm_rope_kv_write_into,
    write_kv,
)
from archerfish.ops.triton.attention.paged_attention import (
    AttentionScratch,
    AttentionWork,
    DeviceTreePaths,
    HeadShape,
    Scoring,
    UnitList,
    attend,
    attend_into,
    num_processors,
    why_not_attention,
)

__all__ = [
    "UNIT_FIELDS",
    "AttentionScratch",
    "AttentionWork",
    "ChunkColumns",
    "DeviceTreePaths",
    "HeadShape",
    "QkNormRope",
    "Scoring",
    "UnitList",
    "Units",
    "attend",
    "attend_into",
    "attention_units",
    "copy_blocks",
    "most_units",
    "move_kv",
    "num_processors",
    "qk_norm_rope_kv_write_into",
    "why_not_attention",
    "write_kv",
]
