"""How many numbers of a row are loaded at once. Knows how tensors lie, and no kernel."""

from torch import Tensor

_AT_ONCE = 16  # Bytes.


def vector_of(width: int, *tensors: Tensor) -> int:
    """As many of the first tensor's numbers as fit, if rows of all tensors start on such boundaries; otherwise 1."""
    vector = _AT_ONCE // tensors[0].itemsize
    return vector if width % vector == 0 and all(_is_aligned(x, vector) for x in tensors) else 1


def summing_vector_of(width: int, *tensors: Tensor) -> int:
    """The same for kernels that add up a row: its width alone must decide, or where it lies would change the sum."""
    vector = vector_of(width, *tensors)
    assert vector > 1 or width % (_AT_ONCE // tensors[0].itemsize), (
        f"rows of {width} numbers, and their weights, must start at multiples of {_AT_ONCE} bytes"
    )
    return vector


def _is_aligned(x: Tensor, vector: int) -> bool:
    assert x.stride(-1) == 1 or x.shape[-1] <= 1 or not x.numel(), "columns lie side by side"
    strides = [stride for size, stride in zip(x.shape[:-1], x.stride()[:-1], strict=True) if size > 1]
    return x.data_ptr() % _AT_ONCE == 0 and all(stride % vector == 0 for stride in strides)
