"""Weights side by side: copies that do not overlap, aligned, and freed with the last of them."""

import torch

from archerfish.weights.shelf import Shelf


def test_what_is_kept_is_a_copy_of_its_own() -> None:
    shelf = Shelf()
    given = [torch.randint(0, 255, shape, dtype=torch.uint8) for shape in ((3, 7), (64,), (1, 1), (1000, 129), (0, 5))]
    wide = torch.randn(5, 6)
    kept = [shelf.keep(tensor) for tensor in given]
    kept_wide = shelf.keep(wide)
    for tensor in (*kept, kept_wide):
        assert tensor.is_contiguous() and tensor.data_ptr() % 64 == 0
    for tensor, copy in zip((*given, wide), (*kept, kept_wide), strict=True):
        assert copy.shape == tensor.shape and torch.equal(copy, tensor)
        tensor.zero_()
    assert all(copy.any() for copy in (*kept[:-1], kept_wide) if copy.numel() > 1)


def test_what_is_larger_than_a_piece_has_one_of_its_own() -> None:
    shelf = Shelf()
    small, large = torch.ones(10, dtype=torch.uint8), torch.ones((64 << 20) + 1, dtype=torch.uint8)
    first, second, third = shelf.keep(small), shelf.keep(large), shelf.keep(small)
    assert torch.equal(second, large) and torch.equal(first, third)
