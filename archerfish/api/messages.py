"""The messages endpoint, in the shape of Anthropic's API: its inputs for the engine, its replies and its events."""

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import msgspec

from archerfish.api.bodies.messages import CountTokensBody, MessagesBody, NoThinking, ThinkingBudget
from archerfish.api.conversation import Conversation, ReasoningOptions
from archerfish.api.endpoint_call import Chunk, EndpointCall
from archerfish.api.errors import ErrorReply
from archerfish.api.message_writer import MessageWriter
from archerfish.api.model import ServedModel
from archerfish.api.structure import structured
from archerfish.engine.outputs import OutputStream, StreamOutput
from archerfish.errors import InvalidParameter


class MessagesCall(EndpointCall):
    """One conversation and the message that answers it."""

    ping: ClassVar[Chunk | None] = {"type": "ping"}
    has_done_marker = False

    def __init__(self, model: ServedModel, body: MessagesBody) -> None:
        self._model = model
        self._body = body.without_content()
        self._conversation = _conversation(model, body)
        if isinstance(body.thinking, ThinkingBudget) and body.thinking.budget_tokens >= body.max_tokens:
            allowed = f"it must be less than max_tokens = {body.max_tokens}"
            raise InvalidParameter("thinking.budget_tokens", body.thinking.budget_tokens, allowed)
        params = self._conversation.params(body, max_tokens=body.max_tokens, stop=body.stop_sequences)
        self.inputs = self._conversation.inputs(body, params)
        self.is_streamed = bool(body.stream)
        self._writer: MessageWriter | None = None

    @property
    def message(self) -> dict[str, Any]:
        """The message as far as it is written, once it has begun."""
        assert self._writer is not None, "a stream has begun"
        return self._writer.message

    def begin(self, outputs: Sequence[OutputStream]) -> Iterator[Chunk]:
        self._writer = self._new_writer(outputs)
        return iter(())

    def add(self, prompt_index: int, piece: StreamOutput) -> Iterator[Chunk]:
        assert self._writer is not None, "a stream has begun"
        return self._writer.add(piece)

    def fail(self, error: ErrorReply, piece: StreamOutput | None = None) -> Iterator[Chunk]:
        yield error.anthropic_body

    def reply(self, outputs: Sequence[OutputStream]) -> dict[str, Any]:
        """Return the whole message, written as if all of it had come in one piece."""
        writer = self._new_writer(outputs)
        deque(writer.add(outputs[0].whole(0)), maxlen=0)  # The message grows while its events are read.
        return writer.message

    def _new_writer(self, outputs: Sequence[OutputStream]) -> MessageWriter:
        [output] = outputs
        conversation = self._conversation
        reader = conversation.reader(self._body)
        name, metrics = self._model.name, self._body.metrics
        return MessageWriter(name, output, reader, measure=conversation.measure, metrics=metrics)


def count_tokens(model: ServedModel, body: CountTokensBody) -> bytes:
    """Return the number of tokens of a conversation, as the whole reply in JSON."""
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
        structured=structured(body, body.wanted_format, field="output_config.format"),
        thinking=_thinking_wish(body),
        template={
            "add_generation_prompt": not body.continues_answer,
            "continue_final_message": body.continues_answer,
        },
    )


def _thinking_wish(body: CountTokensBody) -> ReasoningOptions:
    match body.thinking:
        case NoThinking():
            return ReasoningOptions("thinking", "none")
        case ThinkingBudget(budget_tokens=budget):
            limit: int | None = budget
        case _:
            limit = None
    effort = None if body.output_config is None else body.output_config.effort
    return ReasoningOptions("output_config.effort", effort, limit, "thinking.budget_tokens")
