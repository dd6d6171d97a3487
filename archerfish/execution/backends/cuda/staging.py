"""Pinned buffers through which the host writes a step's words to the device without waiting."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

_NUM_PINNED = 4
"""Pinned copies: one more than the steps that can be in flight."""


class Staging:
    """An int32 buffer on the device at a fixed address, and a ring of pinned buffers to fill it from."""

    def __init__(self, num_words: int, device: str) -> None:
        self.words = torch.zeros(num_words, dtype=torch.int32, device=device)
        is_cuda = device != "cpu"
        self._pinned = [torch.zeros(num_words, dtype=torch.int32, pin_memory=is_cuda) for _ in range(_NUM_PINNED)]
        self._sent: list[Any] = [None] * _NUM_PINNED
        if is_cuda:
            self._sent = [torch.cuda.Event() for _ in range(_NUM_PINNED)]  # type: ignore[no-untyped-call]
        self._index = 0

    def send(self, write: Callable[["np.ndarray[Any, np.dtype[np.int32]]"], int]) -> None:
        """Send words to the device: `write` fills an array and returns how many of its words count."""
        self._index = (self._index + 1) % _NUM_PINNED
        pinned, sent = self._pinned[self._index], self._sent[self._index]
        if sent is not None:
            sent.synchronize()  # The last copy from this buffer must be over.
        num_words = write(pinned.numpy())
        if num_words:
            self.words[:num_words].copy_(pinned[:num_words], non_blocking=True)
        if sent is not None:
            sent.record()

    def view(self, first: int, *shape: int) -> Tensor:
        """Return a view of the words on the device."""
        return self.words[first : first + int(np.prod(shape))].view(shape)
