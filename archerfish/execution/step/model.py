"""The protocol of a model that runs steps, whichever backend runs it, and what one forward pass returns."""

from typing import NamedTuple, Protocol

from torch import Tensor

from archerfish.arch.arch import Arch
from archerfish.execution.step.inputs import StepBatch
from archerfish.execution.step.rows import Rows


class StepLimits(NamedTuple):
    """The largest step that a backend allocates buffers for."""

    max_tokens: int
    max_chunks: int
    max_logits: int


class ForwardOutput(NamedTuple):
    """The tensors that one forward pass returns."""

    hidden: Tensor
    """[T, hidden] final states of all the step's tokens."""
    logits: Tensor
    """[logits, vocabulary] float32, of the tokens at the batch's logit indices."""
    aux_hidden_states: tuple[Tensor, ...] = ()
    """[T, hidden] each: the inputs of the auxiliary layers that were requested, for drafters that read them."""


class RunnableModel(Protocol):
    """A decoder with its KV cache, run by any backend."""

    @property
    def arch(self) -> Arch: ...

    def run(self, batch: StepBatch, rows: Rows) -> ForwardOutput:
        """Run one forward pass, which stores keys and values of the step's tokens."""

    def logits(self, states: Tensor) -> Tensor:
        """Return [rows, vocabulary] float32 logits of [rows, hidden] states."""

    def close(self) -> None:
        """Stop threads. Called once, after the last step."""
