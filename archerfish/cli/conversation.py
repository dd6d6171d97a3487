"""A conversation with a model: its messages, what of them fits the context, and the turn being written.

Knows no terminal.
"""

import json
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from archerfish.errors import RequestError
from archerfish.request import SamplingParams

if TYPE_CHECKING:
    from archerfish.engine.outputs import StreamOutput

Message = dict[str, str]
StreamChat = Callable[[Sequence[Message], SamplingParams], "Iterator[StreamOutput]"]

_TURN = 2
"""Messages of a turn: the user's and the assistant's."""
_ANSWER_SHARE = 4
"""An answer is left at most this part of the context: with more, too little would be remembered."""


@dataclass(frozen=True, slots=True)
class ChatModel:
    """What a conversation needs of a model."""

    stream: StreamChat
    token_ids: Callable[[Sequence[Message]], Sequence[int]]
    """The prompt that the messages become."""
    check_length: Callable[[Sequence[int]], None]
    """Raises PromptTooLong where a prompt leaves no token for an answer."""
    max_model_len: int


class ChatHistory:
    """What was said so far."""

    def __init__(self, model: ChatModel, params: SamplingParams, system: str | None = None) -> None:
        self._model = model
        self._turns: list[Message] = []
        self.params = params
        self.system = system
        """Instructions before the first turn; None for none."""

    @property
    def messages(self) -> list[Message]:
        return [*self._instructions(), *self._turns]

    @property
    def num_turns(self) -> int:
        return len(self._turns) // _TURN

    @property
    def max_model_len(self) -> int:
        return self._model.max_model_len

    def reset(self) -> None:
        """Forget every turn; the instructions stay."""
        self._turns.clear()

    def drop_oldest_turns(self, text: str) -> int:
        """Drop the oldest turns until the text and an answer to it fit the context; the number of dropped turns.

        Without old turns the text may leave less for the answer. Raises PromptTooLong, and drops nothing, where it
        does not fit even so.
        """
        question = {"role": "user", "content": text}
        limit = self._model.max_model_len
        for_answer = max(1, min(self.params.max_tokens or limit, limit // _ANSWER_SHARE))
        for dropped in range(self.num_turns + 1):
            turns = self._turns[_TURN * dropped :]
            prompt = self._model.token_ids([*self._instructions(), *turns, question])
            if len(prompt) + for_answer <= limit:
                break
        self._model.check_length(prompt)
        self._turns = turns
        return dropped

    def answer(self, text: str) -> "Generator[StreamOutput]":
        """Yield the answer as it is written. Closing early keeps what was written; a refused turn leaves no trace."""
        question = {"role": "user", "content": text}
        written: list[str] = []
        stream = self._model.stream([*self.messages, question], self.params)
        try:
            for piece in stream:
                written.append(piece.text)
                yield piece
        finally:
            if written:
                self._turns += [question, {"role": "assistant", "content": "".join(written)}]

    def to_json(self) -> str:
        """The messages in OpenAI's format."""
        return json.dumps({"messages": self.messages}, ensure_ascii=False, indent=2) + "\n"

    def resume(self, saved: "SavedConversation") -> None:
        """Go on from another conversation; what was said before is forgotten."""
        self.system = saved.system
        self._turns = list(saved.turns)

    def _instructions(self) -> list[Message]:
        return [] if self.system is None else [{"role": "system", "content": self.system}]


class SavedConversation(NamedTuple):
    """What `Conversation.to_json` wrote."""

    system: str | None
    turns: list[Message]


def read_conversation(text: str) -> SavedConversation:
    """The conversation that a text holds as JSON, or a RequestError that says why it holds none."""
    messages = _read_messages(text)
    has_system = bool(messages) and messages[0]["role"] == "system"
    turns = messages[1:] if has_system else messages
    if [message["role"] for message in turns] != ["user", "assistant"] * (len(turns) // _TURN):
        raise RequestError("after a system message, user and assistant must take turns, and the assistant ends")
    return SavedConversation(messages[0]["content"] if has_system else None, turns)


def _read_messages(text: str) -> list[Message]:
    try:
        record = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"it is not JSON: {error}") from error
    messages = record.get("messages") if isinstance(record, dict) else None
    if not isinstance(messages, list):
        raise RequestError('it must be an object with a list of messages: {"messages": [...]}')
    for number, message in enumerate(messages, 1):
        is_message = isinstance(message, dict) and set(message) == {"role", "content"}
        if not is_message or not all(isinstance(value, str) for value in message.values()):
            raise RequestError(f'message {number} must be {{"role": TEXT, "content": TEXT}}')
    return messages
