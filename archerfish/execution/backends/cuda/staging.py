"""What a step tells a device: written into pinned memory, and on its way by few copies while the host goes on."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

_RING = 4
"""Pinned copies, one more than steps that can be on their way."""


class Staging:
    """Words of int32 with a place on the device, the same for every step, and pinned places to write the next ones."""

    def __init__(self, num_words: int, device: str) -> None:
        self.words = torch.zeros(num_words, dtype=torch.int32, device=device)
        is_cuda = device != "cpu"
        self._pinned = [torch.zeros(num_words, dtype=torch.int32, pin_memory=is_cuda) for _ in range(_RING)]
        self._sent: list[Any] = [None] * _RING
        if is_cuda:
            self._sent = [torch.cuda.Event() for _ in range(_RING)]  # type: ignore[no-untyped-call]
        self._turn = 0

    def send(self, write: Callable[["np.ndarray[Any, np.dtype[np.int32]]"], int]) -> None:
        """`write` fills an array and says how many words of it count."""
        self._turn = (self._turn + 1) % _RING
        pinned, sent = self._pinned[self._turn], self._sent[self._turn]
        if sent is not None:
            sent.synchronize()  # Whatever was sent from here last must have left.
        num_words = write(pinned.numpy())
        if num_words:
            self.words[:num_words].copy_(pinned[:num_words], non_blocking=True)
        if sent is not None:
            sent.record()

    def part(self, first: int, *shape: int) -> Tensor:
        """A view of the words on the device."""
        return self.words[first : first + int(np.prod(shape))].view(shape)
