"""Operations: one signature each (signatures.py), ordered implementations, chosen once (choose.py)."""

from archerfish.ops.choose import Choice, Target, choose_ops
from archerfish.ops.signatures import Chunks, EqualChunks, Ops

__all__ = ["Choice", "Chunks", "EqualChunks", "Ops", "Target", "choose_ops"]
