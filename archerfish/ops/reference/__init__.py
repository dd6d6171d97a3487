"""The operations in plain torch: correct on any device, and the reference for all other implementations."""

from collections.abc import Callable
from typing import Any

from archerfish.ops.reference.attention import attend
from archerfish.ops.reference.cache import copy_blocks, move_kv, write_kv
from archerfish.ops.reference.drawing import draw
from archerfish.ops.reference.layers import (
    activate,
    add,
    embed,
    experts,
    layer_norm,
    linear,
    rms_norm,
    rotate,
    route,
    scale,
    softcap,
)

IMPLEMENTATIONS: dict[str, Callable[..., Any]] = {
    "linear": linear,
    "embed": embed,
    "add": add,
    "scale": scale,
    "softcap": softcap,
    "rms_norm": rms_norm,
    "layer_norm": layer_norm,
    "rotate": rotate,
    "activate": activate,
    "route": route,
    "experts": experts,
    "attend": attend,
    "write_kv": write_kv,
    "copy_blocks": copy_blocks,
    "move_kv": move_kv,
    "draw": draw,
}
