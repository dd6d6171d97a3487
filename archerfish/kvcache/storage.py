"""The tensors of the KV cache. Knows blocks and layers, not sequences."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from archerfish.kvcache.layout import KVLayout
from archerfish.kvcache.tables import BlockCopy
from archerfish.ops.signatures import Chunks, LayerCache, Ops


class KVStorage:
    """Keys and values of every block, [slots, blocks, block_size, kv heads, head size] each.

    Of int8 ones also a scale for each head and token, [slots, blocks, block_size, kv heads] float32.
    """

    def __init__(
        self, layout: KVLayout, num_blocks: int, block_size: int, dtype: torch.dtype, device: str, ops: Ops
    ) -> None:
        self.layout = layout
        self.block_size = block_size
        self.device = device
        self._ops = ops
        shape = (layout.num_slots, num_blocks, block_size, layout.num_kv_heads, layout.head_dim)
        self.keys, self.values = (_zeros(shape, dtype, device) for _ in range(2))
        self.key_scales: Tensor | None = None
        self.value_scales: Tensor | None = None
        if dtype == torch.int8:
            self.key_scales, self.value_scales = (_zeros(shape[:-1], torch.float32, device) for _ in range(2))

    def write(self, layer: int, k: Tensor, v: Tensor, chunks: Chunks) -> None:
        place = self.layout.places[layer]
        self._ops.write_kv(k, v, self._of_slot(place.slot), chunks.slots[place.group])

    def attend(
        self, layer: int, q: Tensor, chunks: Chunks, scale: float, window: int | None, softcap: float | None
    ) -> Tensor:
        place = self.layout.places[layer]
        return self._ops.attend(q, self._of_slot(place.slot), chunks, place.group, scale, window, softcap)

    def copy(self, copies: Sequence[BlockCopy]) -> None:
        """Copy whole blocks, all layers of their group at once."""
        if not copies:
            return
        sources = torch.tensor([copy.source for copy in copies], device=self.keys.device)
        targets = torch.tensor([copy.target for copy in copies], device=self.keys.device)
        for slot in range(self.layout.num_slots):
            self._ops.copy_blocks(self._of_slot(slot), sources, targets)

    def _of_slot(self, slot: int) -> LayerCache:
        if self.key_scales is None or self.value_scales is None:
            return LayerCache(self.keys[slot], self.values[slot])
        return LayerCache(self.keys[slot], self.values[slot], self.key_scales[slot], self.value_scales[slot])


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: str) -> Tensor:
    """Main memory through numpy, whose zeroed pages take no room until they are written; torch would write them all."""
    if device == "cpu":
        return torch.from_numpy(np.zeros(math.prod(shape) * dtype.itemsize, np.uint8)).view(dtype).view(shape)
    return torch.zeros(shape, dtype=dtype, device=device)
