"""What every way to run a model has in common, and what one forward pass gives."""

from typing import NamedTuple, Protocol

from torch import Tensor

from archerfish.arch.arch import Arch
from archerfish.execution.step.inputs import Outline
from archerfish.execution.step.rows import Rows


class Most(NamedTuple):
    """Of a step."""

    rows: int
    chunks: int
    picked: int


class Passed(NamedTuple):
    hidden: Tensor
    """[T, hidden] of all the step's tokens."""
    logits: Tensor
    """[picked, vocabulary] float32, of the tokens that a token is drawn after."""
    taps: tuple[Tensor, ...] = ()
    """[T, hidden] each: the stream between layers, where somebody listens."""


class RunnableModel(Protocol):
    """A decoder with its cache, however it is run."""

    @property
    def arch(self) -> Arch: ...

    def run(self, outline: Outline, rows: Rows) -> Passed:
        """One forward pass. Keys and values of the step's tokens are stored on the way."""

    def logits(self, states: Tensor) -> Tensor:
        """[rows, hidden] -> [rows, vocabulary], float32."""

    def close(self) -> None:
        """Let go of threads. Called once, after the last step."""
