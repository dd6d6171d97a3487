"""Messages, in the shape of Anthropic's API: what a body asks, and how the answer is told. Knows no HTTP."""

from collections.abc import Sequence
from typing import Any

import msgspec

from archerfish.api.ask import Ask
from archerfish.api.bodies.messages import CountTokensBody, MessagesBody
from archerfish.api.conversation import Conversation
from archerfish.api.message_writer import MessageWriter
from archerfish.api.model import ServedModel
from archerfish.api.writing import Writing
from archerfish.errors import InvalidParameter


class Message:
    """One conversation: the prompt it comes to, and how the answer is told."""

    def __init__(self, model: ServedModel, body: MessagesBody) -> None:
        self._model = model
        self._body = body.without_content()
        self._conversation = _conversation(model, body)
        params = self._conversation.params(body, max_tokens=body.max_tokens, stop=body.stop_sequences)
        self.ask = Ask(prompts=[self._conversation.prompt], params=params, body=self._body)

    @property
    def is_streamed(self) -> bool:
        return bool(self._body.stream)

    def writer(self, written: Writing) -> MessageWriter:
        """For the message, before its first token. `written` is the answer, which grows meanwhile."""
        return MessageWriter(self._model.name, written, self._conversation.reader(), metrics=self._body.metrics)

    def reply(self, written: Sequence[Writing]) -> dict[str, Any]:
        """The whole message at once: as if all of it had come in one piece."""
        [one] = written
        writer = self.writer(one)
        for _ in writer.add(one.whole(0)):  # Nobody listens.
            pass
        return writer.message


def count_tokens(model: ServedModel, body: CountTokensBody) -> bytes:
    """How long a conversation is, as the model will see it: the whole reply, as JSON."""
    prompt = _conversation(model, body).prompt
    return msgspec.json.encode({"input_tokens": len(model.intake.token_ids(prompt, add_special_tokens=False))})


def _conversation(model: ServedModel, body: CountTokensBody) -> Conversation:
    model.check_name(body.model)
    messages = body.chat_messages
    if body.continues_answer and "tool_calls" in messages[-1]:
        raise InvalidParameter("messages", "...", "the last one calls a tool; its tool_result must follow")
    return Conversation(
        model,
        messages,
        tools=body.chat_tools,
        tool_choice=body.chat_tool_choice,
        parallel=body.parallel,
        form=body.form,
        template={
            "add_generation_prompt": not body.continues_answer,
            "continue_final_message": body.continues_answer,
        },
    )
