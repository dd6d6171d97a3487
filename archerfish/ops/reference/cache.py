"""Writing and copying blocks of the KV cache, in plain torch."""

from torch import Tensor


def write_kv(k: Tensor, v: Tensor, keys: Tensor, values: Tensor, slots: Tensor) -> None:
    # By block and offset: flattened to slots, a strided cache would be a copy, and what is written to it lost.
    place = (slots // keys.shape[1], slots % keys.shape[1])
    keys[place] = k.to(keys.dtype)
    values[place] = v.to(values.dtype)


def copy_blocks(cache: Tensor, sources: Tensor, targets: Tensor) -> None:
    cache[targets] = cache[sources]
