"""Operations: one signature each (signatures.py), ordered implementations, chosen once (choose.py)."""

from archerfish.ops.choose import Choice, Target, choose_ops
from archerfish.ops.dtypes import torch_dtype
from archerfish.ops.signatures import Chunks, Ops

__all__ = ["Choice", "Chunks", "Ops", "Target", "choose_ops", "torch_dtype"]
