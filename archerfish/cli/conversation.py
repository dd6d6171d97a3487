"""A conversation with a model: its messages, which of them fit the context, and the turn in progress.

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
"""At most one part in so many of the context is left free for an answer: with more, too few turns would fit."""


@dataclass(frozen=True, slots=True)
class ChatModel:
    """The functions of a model that a conversation needs."""

    stream: StreamChat
    token_ids: Callable[[Sequence[Message]], Sequence[int]]
    """Returns the prompt of the messages."""
    check_length: Callable[[Sequence[int]], None]
    """Raises PromptTooLong where a prompt leaves no token for an answer."""
    max_model_len: int


class ChatHistory:
    """The turns so far, and the parameters of the next answer."""

    def __init__(self, model: ChatModel, params: SamplingParams, system: str | None = None) -> None:
        self._model = model
        self._turns: list[Message] = []
        self.params = params
        self.system = system
        """System prompt; None without one."""

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
        """Drop all turns; the system prompt stays."""
        self._turns.clear()

    def drop_oldest_turns(self, text: str) -> int:
        """Drop the oldest turns until the text and an answer to it fit the context, and return how many were dropped.

        If the text fits only without any turns, less may be left for the answer. If it does not fit even then,
        PromptTooLong is raised and nothing is dropped.
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
        """Yield the answer as it is written.

        Closing the generator early retains the text so far; a refused message leaves no trace.
        """
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
        """Return the messages in OpenAI's format."""
        return json.dumps({"messages": self.messages}, ensure_ascii=False, indent=2) + "\n"

    def resume(self, saved: "SavedConversation") -> None:
        """Continue another conversation in place of this one."""
        self.system = saved.system
        self._turns = list(saved.turns)

    def _instructions(self) -> list[Message]:
        return [] if self.system is None else [{"role": "system", "content": self.system}]


class SavedConversation(NamedTuple):
    """A conversation as read from the JSON of `ChatHistory.to_json`."""

    system: str | None
    turns: list[Message]


def read_conversation(text: str) -> SavedConversation:
    """Return the conversation that a text holds as JSON, or raise a RequestError that says why it holds none."""
    messages = _read_messages(text)
    has_system = bool(messages) and messages[0]["role"] == "system"
    turns = messages[1:] if has_system else messages
    if [message["role"] for message in turns] != ["user", "assistant"] * (len(turns) // _TURN):
        raise RequestError(
            "after an optional system message, user and assistant must alternate, ending with the assistant"
        )
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
