"""Messages, in the shape of Anthropic's API: what a body asks, and how the answer is told. Knows no HTTP."""

from collections.abc import Sequence
from typing import Any

import msgspec

from archerfish.api.bodies.messages import CountTokensBody, MessagesBody, NoThinking, Thinking
from archerfish.api.conversation import Conversation, ThinkingWish
from archerfish.api.inputs import EngineInputs
from archerfish.api.message_writer import MessageWriter
from archerfish.api.model import ServedModel
from archerfish.api.structure import structured
from archerfish.engine.outputs import OutputStream
from archerfish.errors import InvalidParameter


class Message:
    """One conversation: the prompt it comes to, and how the answer is told."""

    def __init__(self, model: ServedModel, body: MessagesBody) -> None:
        self._model = model
        self._body = body.without_content()
        self._conversation = _conversation(model, body)
        if isinstance(body.thinking, Thinking) and body.thinking.budget_tokens >= body.max_tokens:
            allowed = f"it must be less than max_tokens = {body.max_tokens}"
            raise InvalidParameter("thinking.budget_tokens", body.thinking.budget_tokens, allowed)
        params = self._conversation.params(body, max_tokens=body.max_tokens, stop=body.stop_sequences)
        self.inputs = EngineInputs(prompts=[self._conversation.prompt], params=params, body=self._body)

    @property
    def is_streamed(self) -> bool:
        return bool(self._body.stream)

    def writer(self, written: OutputStream) -> MessageWriter:
        """For the message, before its first token. `written` is the answer, which grows meanwhile."""
        conversation = self._conversation
        reader = conversation.reader(self._body)
        name, metrics = self._model.name, self._body.metrics
        return MessageWriter(name, written, reader, measure=conversation.measure, metrics=metrics)

    def reply(self, written: Sequence[OutputStream]) -> dict[str, Any]:
        """The whole message at once: as if all of it had come in one piece."""
        [one] = written
        writer = self.writer(one)
        for _ in writer.add(one.whole(0)):  # Nobody listens.
            pass
        return writer.message


def count_tokens(model: ServedModel, body: CountTokensBody) -> bytes:
    """How long a conversation is, as the model will see it: the whole reply, as JSON."""
    prompt = _conversation(model, body).prompt
    return msgspec.json.encode({"input_tokens": len(model.processor.token_ids(prompt, add_special_tokens=False))})


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
        form=structured(body, body.wanted_format, field="output_config.format"),
        thinking=_thinking_wish(body),
        template={
            "add_generation_prompt": not body.continues_answer,
            "continue_final_message": body.continues_answer,
        },
    )


def _thinking_wish(body: CountTokensBody) -> ThinkingWish:
    match body.thinking:
        case NoThinking():
            return ThinkingWish("thinking", "none")
        case Thinking(budget_tokens=budget):
            limit: int | None = budget
        case _:
            limit = None
    effort = None if body.output_config is None else body.output_config.effort
    return ThinkingWish("output_config.effort", effort, limit, "thinking.budget_tokens")
