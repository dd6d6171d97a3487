"""The messages endpoint, in the shape of Anthropic's API: its inputs for the engine, its replies and its events."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

import msgspec
from pydantic_core import from_json

from archerfish.api.answer_grammar import structured
from archerfish.api.answers import AnswerReader, CallArguments, CallStart, Content, InvalidCall, Reasoning, as_field
from archerfish.api.bodies.messages import CountTokensBody, MessagesBody, NoThinking, ThinkingBudget
from archerfish.api.conversation import Conversation, ReasoningOptions
from archerfish.api.endpoint_call import Chunk, EndpointCall
from archerfish.api.errors import ErrorReply
from archerfish.api.model import ServedModel
from archerfish.api.replies import new_id, request_metrics
from archerfish.engine.outputs import OutputStream, StreamOutput
from archerfish.errors import InvalidParameter


class MessageWriter:
    """A message in the making. Events come while it changes, so they must be read for anything to happen."""

    def __init__(
        self,
        model_name: str,
        written: OutputStream,
        reader: AnswerReader,
        *,
        measure: Callable[[OutputStream], int | None],
        metrics: bool,
    ) -> None:
        """`written` is the answer, which grows meanwhile. `measure` notes at its end when its reasoning ended."""
        self._written = written
        self._reader = reader
        self._measure = measure
        self._metrics = metrics
        self._invalid_calls: list[InvalidCall] = []
        self._content: list[dict[str, Any]] = []
        self._is_begun = False
        self._is_open = False
        """Whether the last block is still being written."""
        self._arguments = ""
        """Of the call that is being written."""
        self.message: dict[str, Any] = {
            "id": new_id("msg", "_"),
            "type": "message",
            "role": "assistant",
            "model": model_name,
            "content": self._content,
            "stop_reason": None,
            "stop_sequence": None,
        }

    def add(self, piece: StreamOutput) -> Iterator[dict[str, Any]]:
        if not self._is_begun:
            # Not before the first token: what was cached is not known until then.
            self._is_begun = True
            yield {"type": "message_start", "message": {**self.message, "usage": self._usage()}}
            yield {"type": "ping"}
        deltas = self._reader.feed(piece.text)
        if piece.finish_reason is not None:
            deltas += self._reader.finish()
        for delta in deltas:
            match delta:
                case Content(text):
                    yield from self._add_words("text", text, {"citations": None})
                case Reasoning(text):
                    yield from self._add_words("thinking", text, {"signature": ""})
                case InvalidCall():
                    self._invalid_calls.append(delta)
                case CallStart(_, call_id, name):
                    yield from self._open_block({"type": "tool_use", "id": call_id, "name": name, "input": {}})
                case CallArguments(_, text):
                    self._arguments += text
                    delta_of_input = {"type": "input_json_delta", "partial_json": text}
                    yield self._block_event("content_block_delta", delta=delta_of_input)
        if piece.finish_reason is not None:
            yield from self._end(piece)

    def _end(self, piece: StreamOutput) -> Iterator[dict[str, Any]]:
        yield from self._close_block()
        reason, sequence = "end_turn", None
        if piece.finish_reason == "length":
            reason = "max_tokens"
        elif self._reader.has_calls:
            reason = "tool_use"
        elif isinstance(piece.stop_reason, str):
            reason, sequence = "stop_sequence", piece.stop_reason
        ending = {"stop_reason": reason, "stop_sequence": sequence}
        self._measure(self._written)
        more: dict[str, Any] = as_field(self._invalid_calls)
        if self._metrics:
            more["metrics"] = request_metrics(self._written)
        self.message |= {**ending, "usage": self._usage(), **more}
        yield {"type": "message_delta", "delta": ending, "usage": self._usage(), **more}
        yield {"type": "message_stop"}

    def _add_words(self, kind: str, text: str, more: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Append to a block of text or thinking, whose field is named after its kind."""
        if not self._is_open or self._content[-1]["type"] != kind:
            yield from self._open_block({"type": kind, kind: "", **more})
        self._content[-1][kind] += text
        yield self._block_event("content_block_delta", delta={"type": f"{kind}_delta", kind: text})

    def _open_block(self, block: dict[str, Any]) -> Iterator[dict[str, Any]]:
        yield from self._close_block()
        self._is_open = True
        self._content.append(block)
        yield self._block_event("content_block_start", content_block=block)

    def _close_block(self) -> Iterator[dict[str, Any]]:
        if not self._is_open:
            return
        self._is_open = False
        if self._content[-1]["type"] == "tool_use":
            self._content[-1]["input"] = _input(self._arguments)
            self._arguments = ""
        yield self._block_event("content_block_stop")

    def _block_event(self, kind: str, **fields: Any) -> dict[str, Any]:
        return {"type": kind, "index": len(self._content) - 1, **fields}

    def _usage(self) -> dict[str, Any]:
        used = self._written.usage
        return {
            "input_tokens": used.num_prompt_tokens - used.num_cached_tokens,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": used.num_cached_tokens,
            "output_tokens": used.num_generated_tokens,
        }


def _input(arguments: str) -> dict[str, Any]:
    """The arguments of a call, as far as they were written."""
    try:
        value = from_json(arguments, allow_partial=True)
    except ValueError:
        value = None
    # Not JSON: in the form in which Anthropic's documentation has clients send it back.
    return value if isinstance(value, dict) else {"INVALID_JSON": arguments}


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
