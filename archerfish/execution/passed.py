"""What one forward pass gives."""

from typing import NamedTuple

from torch import Tensor


class Passed(NamedTuple):
    hidden: Tensor
    """[T, hidden] of all the step's tokens."""
    logits: Tensor
    """[sampling, vocabulary] float32, after the chunks that a token is drawn after."""
