"""The responses endpoint: its inputs for the engine, its replies and its events."""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import msgspec

from archerfish.api.bodies.responses import LOGPROBS, ReasoningConfig, ResponsesBody
from archerfish.api.conversation import Conversation, ReasoningOptions
from archerfish.api.endpoint_call import Chunk, EndpointCall
from archerfish.api.errors import ErrorReply
from archerfish.api.model import ServedModel
from archerfish.api.replies import new_id, seconds_now
from archerfish.api.response_writer import ResponseWriter
from archerfish.api.structure import structured
from archerfish.engine.outputs import OutputStream, StreamOutput
from archerfish.errors import InvalidParameter


class ResponsesCall(EndpointCall):
    """One turn of a conversation and the response to it."""

    has_done_marker = False

    def __init__(
        self,
        model: ServedModel,
        body: ResponsesBody,
        *,
        before: Sequence[Mapping[str, Any]] = (),
        is_stored: bool,
    ) -> None:
        """`before` are the messages of turns that this one continues. `is_stored`: it can be continued itself."""
        self._model = model
        self._body = body.without_content()
        self._is_stored = is_stored
        model.check_name(body.model)
        if body.background and not is_stored:
            raise InvalidParameter("store", body.store, "a background response must be stored to be read")
        if body.top_logprobs is not None and not body.include:
            raise InvalidParameter("top_logprobs", body.top_logprobs, f'it needs include = ["{LOGPROBS}"]')
        instructions = [] if body.instructions is None else [{"role": "system", "content": body.instructions}]
        effort = None if body.reasoning is None else body.reasoning.effort
        self._conversation = Conversation(
            model,
            [*instructions, *before, *body.messages],
            tools=body.chat_tools,
            tool_choice=body.chat_tool_choice,
            parallel=body.parallel_tool_calls is not False,
            structured=structured(body, None if body.text is None else body.text.response_format, field="text.format"),
            thinking=ReasoningOptions("reasoning.effort", effort, body.thinking_token_budget),
        )
        if body.include and (self._conversation.may_call or self._conversation.may_think):
            raise InvalidParameter(
                "include", LOGPROBS, "log-probabilities are returned only for answers without tools and reasoning"
            )
        params = self._conversation.params(
            body, max_tokens=body.max_output_tokens, logprobs=(body.top_logprobs or 0) if body.include else None
        )
        self.inputs = self._conversation.inputs(body, params)
        self.is_streamed = bool(body.stream)
        self.added = msgspec.json.encode(body.messages) if is_stored else b"[]"
        """The messages of this turn, as JSON, for turns that continue it."""
        self._outputs: Sequence[OutputStream] = ()
        self._writer: ResponseWriter | None = None

    @property
    def body(self) -> ResponsesBody:
        """Without what was said in it."""
        return self._body

    @property
    def response(self) -> dict[str, Any]:
        """The response as far as it is written, once it has begun."""
        assert self._writer is not None, "a response has begun"
        return self._writer.response

    def begin(self, outputs: Sequence[OutputStream]) -> Iterator[Chunk]:
        conversation = self._conversation
        reader = conversation.reader(self._body)
        self._outputs = outputs
        self._writer = ResponseWriter(self._head(), reader, measure=conversation.measure, metrics=self._body.metrics)
        return self._writer.begin()

    def add(self, prompt_index: int, piece: StreamOutput) -> Iterator[Chunk]:
        assert self._writer is not None, "a response has begun"
        return self._writer.add(piece)

    def end(self) -> Iterator[Chunk]:
        assert self._writer is not None, "a response has begun"
        return self._writer.end(self._outputs[0])

    def fail(self, error: ErrorReply, piece: StreamOutput | None = None) -> Iterator[Chunk]:
        assert self._writer is not None, "a response has begun"
        if piece is not None:
            yield from self._writer.add(piece)
        yield from self._writer.end(self._outputs[0], error.message)

    def reply(self, outputs: Sequence[OutputStream]) -> dict[str, Any]:
        """Return the whole response, written as if all of it had come in one piece."""
        events = chain(self.begin(outputs), self.add(0, outputs[0].whole(0)), self.end())
        deque(events, maxlen=0)  # The response grows while its events are read.
        return self.response

    def _head(self) -> dict[str, Any]:
        body, params = self._body, self.inputs.params
        given = None if body.text is None else body.text.format
        text_format = None if given is None else given.model_dump(by_alias=True, exclude_none=True)
        choice = body.tool_choice or "auto"
        return {
            "id": new_id("resp", "_"),
            "object": "response",
            "created_at": seconds_now(),
            "completed_at": None,
            "status": "in_progress",
            "background": bool(body.background),
            "error": None,
            "incomplete_details": None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "metadata": body.metadata or {},
            "model": self._model.name,
            "output": [],
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": body.previous_response_id,
            "prompt_cache_key": body.prompt_cache_key,
            "reasoning": (body.reasoning or ReasoningConfig()).model_dump(include={"effort", "summary"}),
            "safety_identifier": body.safety_identifier,
            "service_tier": "default",
            "store": self._is_stored,
            "temperature": params.temperature,
            "text": {"format": {"type": "text"} if text_format is None else text_format},
            "tool_choice": choice if isinstance(choice, str) else choice.model_dump(),
            "tools": [tool.model_dump() for tool in body.tools or ()],
            "top_logprobs": body.top_logprobs or 0,
            "top_p": params.top_p,
            "truncation": "disabled",
            "usage": None,
            "user": body.user,
        }
