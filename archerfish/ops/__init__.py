"""Operations: one signature each (`signatures`), with ordered implementations that are chosen once (`choose`)."""

from archerfish.ops.choose import (
    Choice,
    KernelTarget,
    all_implementations,
    choose_ops,
    implementations,
    open_native,
    open_triton,
    why_not_native,
    why_not_triton,
)
from archerfish.ops.dtypes import torch_dtype
from archerfish.ops.signatures import Chunks, LayerCache, Ops

__all__ = [
    "Choice",
    "Chunks",
    "KernelTarget",
    "LayerCache",
    "Ops",
    "all_implementations",
    "choose_ops",
    "implementations",
    "open_native",
    "open_triton",
    "torch_dtype",
    "why_not_native",
    "why_not_triton",
]
