"""Weights in an arena: copies that do not overlap, aligned, and freed with the last of them."""

import torch

from archerfish.weights.weight_arena import WeightArena


def test_every_copy_is_separate_and_aligned() -> None:
    arena = WeightArena()
    given = [torch.randint(0, 255, shape, dtype=torch.uint8) for shape in ((3, 7), (64,), (1, 1), (1000, 129), (0, 5))]
    wide = torch.randn(5, 6)
    copies = [arena.copy_in(tensor) for tensor in given]
    wide_copy = arena.copy_in(wide)
    for tensor in (*copies, wide_copy):
        assert tensor.is_contiguous() and tensor.data_ptr() % 64 == 0
    for tensor, copy in zip((*given, wide), (*copies, wide_copy), strict=True):
        assert copy.shape == tensor.shape and torch.equal(copy, tensor)
        tensor.zero_()
    assert all(copy.any() for copy in (*copies[:-1], wide_copy) if copy.numel() > 1)


def test_a_tensor_larger_than_a_chunk_has_one_of_its_own() -> None:
    arena = WeightArena()
    small, large = torch.ones(10, dtype=torch.uint8), torch.ones((64 << 20) + 1, dtype=torch.uint8)
    first, second, third = arena.copy_in(small), arena.copy_in(large), arena.copy_in(small)
    assert torch.equal(second, large) and torch.equal(first, third)
