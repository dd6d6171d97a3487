"""The tensors of the KV cache. Knows blocks and layers, not sequences."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from archerfish.kvcache.layout import KVLayout
from archerfish.kvcache.tables import BlockCopy
from archerfish.ops.signatures import Chunks, Ops


class KVStorage:
    """Keys and values of every block, [slots, blocks, block_size, kv heads, head size] each."""

    def __init__(
        self, layout: KVLayout, num_blocks: int, block_size: int, dtype: torch.dtype, device: str, ops: Ops
    ) -> None:
        self.layout = layout
        self.block_size = block_size
        self._ops = ops
        shape = (layout.num_slots, num_blocks, block_size, layout.num_kv_heads, layout.head_dim)
        self.keys = _zeros(shape, dtype, device)
        self.values = _zeros(shape, dtype, device)

    def write(self, layer: int, k: Tensor, v: Tensor, chunks: Chunks) -> None:
        place = self.layout.places[layer]
        self._ops.write_kv(k, v, self.keys[place.slot], self.values[place.slot], chunks.slots[place.group])

    def attend(
        self, layer: int, q: Tensor, chunks: Chunks, scale: float, window: int | None, softcap: float | None
    ) -> Tensor:
        place = self.layout.places[layer]
        keys, values = self.keys[place.slot], self.values[place.slot]
        return self._ops.attend(q, keys, values, chunks, place.group, scale, window, softcap)

    def copy(self, copies: Sequence[BlockCopy]) -> None:
        """Copy whole blocks, all layers of their group at once."""
        if not copies:
            return
        sources = torch.tensor([copy.source for copy in copies], device=self.keys.device)
        targets = torch.tensor([copy.target for copy in copies], device=self.keys.device)
        for slot in range(self.layout.num_slots):
            self._ops.copy_blocks(self.keys[slot], sources, targets)
            self._ops.copy_blocks(self.values[slot], sources, targets)


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: str) -> Tensor:
    """Main memory through numpy, whose zeroed pages take no room until they are written; torch would write them all."""
    if device == "cpu":
        return torch.from_numpy(np.zeros(math.prod(shape) * dtype.itemsize, np.uint8)).view(dtype).view(shape)
    return torch.zeros(shape, dtype=dtype, device=device)
