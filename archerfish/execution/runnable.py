"""What one forward pass gives."""

from typing import NamedTuple

from torch import Tensor


class Passed(NamedTuple):
    hidden: Tensor
    """[T, hidden] of all the step's tokens."""
    logits: Tensor
    """[picked, vocabulary] float32, of the tokens that a token is drawn after."""
