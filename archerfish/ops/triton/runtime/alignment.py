"""Decides how many numbers of a row a kernel loads at once, from the alignment of tensors."""

from torch import Tensor

_AT_ONCE = 16  # Bytes of one load.


def vector_of(width: int, *tensors: Tensor) -> int:
    """Return how many of the first tensor's numbers one load takes, if rows of all tensors are aligned to it; else
    1."""
    vector = _AT_ONCE // tensors[0].itemsize
    return vector if width % vector == 0 and all(_is_aligned(x, vector) for x in tensors) else 1


def summing_vector_of(width: int, *tensors: Tensor) -> int:
    """Return `vector_of` for kernels that sum a row: only the width may decide, or alignment would change the sum."""
    vector = vector_of(width, *tensors)
    assert vector > 1 or width % (_AT_ONCE // tensors[0].itemsize), (
        f"rows of {width} numbers, and their weights, must start at multiples of {_AT_ONCE} bytes"
    )
    return vector


def _is_aligned(x: Tensor, vector: int) -> bool:
    assert x.stride(-1) == 1 or x.shape[-1] <= 1 or not x.numel(), "columns must be contiguous"
    strides = [stride for size, stride in zip(x.shape[:-1], x.stride()[:-1], strict=True) if size > 1]
    return x.data_ptr() % _AT_ONCE == 0 and all(stride % vector == 0 for stride in strides)
