"""Writing and copying blocks of the KV cache, in plain torch."""

from torch import Tensor


def write_kv(k: Tensor, v: Tensor, keys: Tensor, values: Tensor, slots: Tensor) -> None:
    keys.flatten(0, 1)[slots] = k.to(keys.dtype)
    values.flatten(0, 1)[slots] = v.to(values.dtype)


def copy_blocks(cache: Tensor, sources: Tensor, targets: Tensor) -> None:
    cache[targets] = cache[sources]
