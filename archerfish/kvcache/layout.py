"""How layers share the cache: which layers form a group, which slot of a block each has, and what a block weighs."""

from collections import defaultdict
from dataclasses import dataclass
from typing import NamedTuple

from archerfish.arch.arch import Arch


class LayerSlot(NamedTuple):
    """Where a layer's keys and values are stored."""

    group: int
    slot: int


@dataclass(frozen=True, slots=True)
class KVLayout:
    """Groups of layers that attend equally far. Every group has as many layers as a block has slots, or fewer."""

    windows: tuple[int | None, ...]
    """The attention window of each group; None where there is none."""
    num_slots: int
    """Number of layers that one block holds keys and values for."""
    layer_slots: tuple[LayerSlot, ...]
    """The slot of each layer; layers that share keys and values share the slot."""
    num_kv_heads: int
    head_dim: int

    def block_bytes(self, block_size: int, bytes_per_value: float) -> int:
        """Return the bytes of a block. Those of a value may be fractional: its share of a scale is part of them."""
        return round(2 * self.num_slots * block_size * self.num_kv_heads * self.head_dim * bytes_per_value)


def kv_layout(arch: Arch) -> KVLayout:
    """Group layers by window. Groups are as large as the rarest window allows, so that all blocks weigh the same."""
    by_window: dict[int | None, list[int]] = defaultdict(list)
    for index, reach in _reaches(arch).items():
        by_window[reach].append(index)
    shapes = {(layer.attention.num_kv_heads, layer.attention.head_dim) for layer in arch.layers}
    assert len(shapes) == 1, "all layers store keys and values of one shape"
    num_slots = min(len(layers) for layers in by_window.values())
    windows: list[int | None] = []
    slots: dict[int, LayerSlot] = {}
    for window, layers in by_window.items():
        for first in range(0, len(layers), num_slots):
            for slot, index in enumerate(layers[first : first + num_slots]):
                slots[index] = LayerSlot(len(windows), slot)
            windows.append(window)
    num_kv_heads, head_dim = shapes.pop()
    every = [slots[index if (s := layer.attention.kv_source) is None else s] for index, layer in enumerate(arch.layers)]
    return KVLayout(tuple(windows), num_slots, tuple(every), num_kv_heads, head_dim)


def _reaches(arch: Arch) -> dict[int, int | None]:
    """Return, for each layer that computes keys and values, the largest window among the layers that read them."""
    reaches: dict[int, int | None] = {}
    for index, layer in enumerate(arch.layers):
        window, source = layer.attention.window, layer.attention.kv_source
        if source is None:
            reaches[index] = window
        else:
            known = reaches[source]
            reaches[source] = None if window is None or known is None else max(window, known)
    return reaches
