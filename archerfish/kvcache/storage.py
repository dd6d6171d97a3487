"""The tensors of the KV cache."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from archerfish.arch.arch import Arch
from archerfish.kvcache.layout import KVLayout
from archerfish.kvcache.tables import BlockCopy
from archerfish.ops.arrays import Ints, IntTable
from archerfish.ops.signatures import AttendFunction, Chunks, LayerCache, Ops


class KVStorage:
    """Keys and values of every block, [slots, blocks, block_size, kv heads, head size] each.

    int8 keys and values also have a scale for each head and token, [slots, blocks, block_size, kv heads] float32.
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
        layer_slot = self.layout.layer_slots[layer]
        self._ops.write_kv(k, v, self._of_slot(layer_slot.slot), chunks.slots[layer_slot.group])

    def attend(
        self, layer: int, q: Tensor, chunks: Chunks, scale: float, window: int | None, softcap: float | None
    ) -> Tensor:
        layer_slot = self.layout.layer_slots[layer]
        return self._ops.attend(q, self._of_slot(layer_slot.slot), chunks, layer_slot.group, scale, window, softcap)

    def attending(self, arch: Arch, chunks: Chunks) -> AttendFunction:
        """Return the attention of a pass over these chunks: it stores keys and values, then attends to them."""

        def attend(layer: int, q: Tensor, k: Tensor | None, v: Tensor | None) -> Tensor:
            if k is not None and v is not None:
                self.write(layer, k, v, chunks)
            spec = arch.layers[layer].attention
            return self.attend(layer, q, chunks, spec.scale, spec.window, spec.softcap)

        return attend

    def copy(self, copies: Sequence[BlockCopy]) -> None:
        """Copy whole blocks, all layers of their group at once."""
        if not copies:
            return
        sources = torch.tensor([copy.source for copy in copies], device=self.keys.device)
        targets = torch.tensor([copy.target for copy in copies], device=self.keys.device)
        for slot in range(self.layout.num_slots):
            self._ops.copy_blocks(self._of_slot(slot), sources, targets)

    def move(self, tables: Sequence[IntTable], rows: Ints, sources: Ints, targets: Ints) -> None:
        """Move the keys and values of single tokens to other positions of their rows [n], in all layers.

        All are read before any is written. There is a table [rows, blocks] for each group.
        """
        if not len(rows):
            return
        moves = np.stack([self._slots(tables, rows, positions) for positions in (sources, targets)])
        from_slots, to_slots = torch.from_numpy(moves).to(self.keys.device)
        self._ops.move_kv(self._of_all_slots(), from_slots, to_slots)

    def _slots(self, tables: Sequence[IntTable], rows: Ints, positions: Ints) -> Ints:
        """Return the slots of positions for every group and layer of it, in the cache of all slots."""
        blocks = np.concatenate([table[rows, positions // self.block_size] for table in tables]).astype(np.int64)
        in_slot = blocks * self.block_size + np.tile(positions % self.block_size, len(tables))
        num_slots, num_blocks = self.keys.shape[:2]
        firsts = np.arange(num_slots) * (num_blocks * self.block_size)
        slots: Ints = (firsts[:, None] + in_slot).reshape(-1)
        return slots

    def _of_all_slots(self) -> LayerCache:
        """Return the caches of all slots, one after the other, as if all were blocks of one layer."""
        return LayerCache(*(tensor.flatten(0, 1) for tensor in self._tensors()))

    def _tensors(self) -> list[Tensor]:
        every = (self.keys, self.values, self.key_scales, self.value_scales)
        return [tensor for tensor in every if tensor is not None]

    def _of_slot(self, slot: int) -> LayerCache:
        return LayerCache(*(tensor[slot] for tensor in self._tensors()))


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: str) -> Tensor:
    """Return zeros. On a CPU through numpy, whose pages take no memory before they are written; torch writes all."""
    if device == "cpu":
        return torch.from_numpy(np.zeros(math.prod(shape) * dtype.itemsize, np.uint8)).view(dtype).view(shape)
    return torch.zeros(shape, dtype=dtype, device=device)
