"""The protocol of an endpoint: a body in, inputs for the engine, and a reply or a stream of chunks out."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from archerfish.api.errors import ErrorReply
from archerfish.engine.input_processor import EngineInputs
from archerfish.engine.outputs import OutputStream, StreamOutput

Chunk = dict[str, Any]
"""One event of a stream. Its parts may go on changing, so it must be encoded at once."""


class EndpointCall(ABC):
    """One body that was understood: its inputs for the engine, and how its answers are written.

    A streamed answer is `begin`, `add` for each piece, and `end` or `fail`; any other is a single `reply`.
    """

    inputs: EngineInputs
    is_streamed: bool = False
    ping: ClassVar[Chunk | None] = None
    """Chunk that shows that a stream is alive while no tokens come; None if the endpoint has none."""
    has_done_marker: ClassVar[bool] = True
    """Whether a stream that succeeds ends with `[DONE]`."""

    def begin(self, outputs: Sequence[OutputStream]) -> Iterator[Chunk]:
        """Yield the chunks before the first token. `outputs`, one for each prompt, grow meanwhile."""
        del outputs
        return iter(())

    def add(self, prompt_index: int, piece: StreamOutput) -> Iterator[Chunk]:
        """Yield the chunks of what was added to an answer; none where the endpoint is never streamed."""
        del prompt_index, piece
        return iter(())

    def end(self) -> Iterator[Chunk]:
        """Yield the chunks after the last token."""
        return iter(())

    def fail(self, error: ErrorReply, piece: StreamOutput | None = None) -> Iterator[Chunk]:
        """Yield the chunks that end a stream with an error. `piece` is the end of the answer that failed."""
        del piece
        yield error.body

    @abstractmethod
    def reply(self, outputs: Sequence[OutputStream]) -> dict[str, Any]:
        """Return the body of the reply to a body that is not streamed, one of complete `outputs` for each prompt."""
