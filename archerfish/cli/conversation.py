"""A conversation with a model: its messages, and the turn being written. Knows no terminal."""

from collections.abc import Callable, Generator, Iterator, Sequence
from typing import TYPE_CHECKING

from archerfish.request import SamplingParams

if TYPE_CHECKING:
    from archerfish.engine.outputs import StreamOutput

Message = dict[str, str]
StreamChat = Callable[[Sequence[Message], SamplingParams], "Iterator[StreamOutput]"]


class Conversation:
    """What was said so far."""

    def __init__(self, stream_chat: StreamChat, params: SamplingParams, system: str | None = None) -> None:
        self._stream_chat = stream_chat
        self._params = params
        self._turns: list[Message] = []
        self.system = system
        """Instructions before the first turn; None for none."""

    @property
    def messages(self) -> list[Message]:
        before = [] if self.system is None else [{"role": "system", "content": self.system}]
        return before + self._turns

    def reset(self) -> None:
        """Forget every turn; the instructions stay."""
        self._turns.clear()

    def answer(self, text: str) -> "Generator[StreamOutput]":
        """Yield the answer as it is written. Closing early keeps what was written; a refused turn leaves no trace."""
        question = {"role": "user", "content": text}
        written: list[str] = []
        stream = self._stream_chat([*self.messages, question], self._params)
        try:
            for piece in stream:
                written.append(piece.text)
                yield piece
        finally:
            if written:
                self._turns += [question, {"role": "assistant", "content": "".join(written)}]
