"""The cache's tensors: every byte is counted, and a copied block is the block, scales and all."""

import numpy as np
import pytest
import torch

from archerfish.kvcache.layout import KVLayout, LayerSlot
from archerfish.kvcache.storage import KVStorage
from archerfish.kvcache.tables import BlockCopy
from archerfish.ops import KernelTarget, choose_ops
from archerfish.quant import KvFormat

OPS = choose_ops(KernelTarget(device="cpu", dtype="float32")).ops


def storage(name: str, head_dim: int = 16) -> KVStorage:
    layout = KVLayout((None,), 3, tuple(LayerSlot(0, slot) for slot in range(3)), 5, head_dim)
    return KVStorage(layout, 7, 32, getattr(torch, name), "cpu", OPS)


def tensors(stored: KVStorage) -> list[torch.Tensor]:
    every = (stored.keys, stored.values, stored.key_scales, stored.value_scales)
    return [tensor for tensor in every if tensor is not None]


@pytest.mark.parametrize("head_dim", [16, 48, 80, 96, 112])
@pytest.mark.parametrize("name", ["float32", "bfloat16", "int8"])
def test_a_block_weighs_what_its_tensors_weigh_to_the_byte(name: str, head_dim: int) -> None:
    stored = storage(name, head_dim)
    of_value = KvFormat(name, "float32").bytes_per_value(head_dim)
    assert 7 * stored.layout.block_bytes(32, of_value) == sum(tensor.nbytes for tensor in tensors(stored))


@pytest.mark.parametrize("name", ["float32", "bfloat16", "int8"])
def test_copies_bring_all_of_a_block_in_every_slot(name: str) -> None:
    stored = storage(name)
    assert len(tensors(stored)) == (4 if name == "int8" else 2)
    for tensor in tensors(stored):
        tensor.copy_(torch.arange(tensor.numel()).remainder(101).view(tensor.shape))
    before = [tensor.clone() for tensor in tensors(stored)]
    stored.copy([BlockCopy(1, 4), BlockCopy(6, 0)])
    for tensor, old in zip(tensors(stored), before, strict=True):
        assert torch.equal(tensor[:, [4, 0]], old[:, [1, 6]])
        assert torch.equal(tensor[:, [1, 2, 3, 5, 6]], old[:, [1, 2, 3, 5, 6]])


@pytest.mark.parametrize("name", ["float32", "bfloat16", "int8"])
def test_moves_bring_tokens_of_rows_to_other_positions_in_every_slot_of_every_group(name: str) -> None:
    layout = KVLayout((None, 20), 3, tuple(LayerSlot(group, slot) for group in range(2) for slot in range(3)), 5, 16)
    stored = KVStorage(layout, 9, 8, getattr(torch, name), "cpu", OPS)
    for tensor in tensors(stored):
        tensor.copy_(torch.arange(tensor.numel()).remainder(101).view(tensor.shape))
    before = [tensor.clone() for tensor in tensors(stored)]
    tables = [np.array([[4, 0], [1, 7]], np.int32), np.array([[2, 8], [3, 5]], np.int32)]
    rows, sources, targets = (np.array(each) for each in ([0, 0, 1], [7, 9, 15], [6, 7, 3]))
    stored.move(tables, rows, sources, targets)
    for tensor, old in zip(tensors(stored), before, strict=True):
        for table in tables:
            for row, source, target in zip(rows, sources, targets, strict=True):
                moved = old[:, table[row, source // 8], source % 8]
                old_target = (slice(None), table[row, target // 8], target % 8)
                assert torch.equal(tensor[old_target], moved)
                tensor[old_target] = old[old_target]
        assert torch.equal(tensor, old), "something else has changed"


def test_no_moves_are_none() -> None:
    stored, nothing = storage("float32"), np.zeros(0, np.int64)
    stored.move([np.zeros((1, 2), np.int32)], nothing, nothing, nothing)
    assert not any(tensor.count_nonzero() for tensor in tensors(stored))


def test_what_is_smaller_than_the_models_own_numbers_is_called_lossy() -> None:
    assert str(KvFormat("int8", "bfloat16")) == "int8 (lossy)"
    assert str(KvFormat("bfloat16", "float32")) == "bfloat16 (lossy)"
    assert str(KvFormat("bfloat16", "float16")) == "bfloat16 (lossy)"
    assert str(KvFormat("bfloat16", "bfloat16")) == "bfloat16"
    assert str(KvFormat("float32", "bfloat16")) == "float32"
