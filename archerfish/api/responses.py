"""The responses endpoint: its inputs for the engine, its replies and its events."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Literal

import msgspec

from archerfish.api.answer_grammar import structured
from archerfish.api.answers import AnswerReader, CallArguments, CallStart, Content, InvalidCall, Reasoning, as_field
from archerfish.api.bodies.responses import LOGPROBS, ReasoningConfig, ResponsesBody
from archerfish.api.conversation import Conversation, ReasoningOptions
from archerfish.api.endpoint_call import Chunk, EndpointCall
from archerfish.api.errors import ErrorReply
from archerfish.api.model import ServedModel
from archerfish.api.replies import new_id, request_metrics, seconds_now, token_logprobs
from archerfish.engine.outputs import OutputStream, StreamOutput
from archerfish.errors import InvalidParameter
from archerfish.request import FinishReason

Event = dict[str, Any]
"""Holds the response's own parts, which go on changing: write it down at once."""

Ending = Literal["completed", "incomplete", "failed", "cancelled"]


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


class ResponseWriter:
    """One response. Events come while it changes, so they must be read for anything to happen."""

    def __init__(
        self,
        response: dict[str, Any],
        reader: AnswerReader,
        *,
        measure: Callable[[OutputStream], int | None],
        metrics: bool,
    ) -> None:
        """`response` is all that is known of it before the first token. `metrics`: its end tells how long it took.

        `measure` counts the tokens of its reasoning at the end; None where none is read.
        """
        self.response = response
        self._output: list[dict[str, Any]] = response["output"]
        self._reader = reader
        self._measure = measure
        self._metrics = metrics
        self._invalid_calls: list[InvalidCall] = []
        self._is_open = False
        """Whether the last item is still being written."""
        self._logprobs: list[dict[str, Any]] = []
        """Of tokens whose text has not come yet."""
        self._num_events = 0

    def begin(self) -> Iterator[Event]:
        yield self._event("response.created", response=self.response)
        yield self._event("response.in_progress", response=self.response)

    def add(self, piece: StreamOutput) -> Iterator[Event]:
        if piece.logprobs is not None:
            self._logprobs += token_logprobs(piece.token_ids, piece.logprobs, self.response["top_logprobs"])
        deltas = self._reader.feed(piece.text)
        if piece.finish_reason is not None:
            deltas += self._reader.finish()
        for delta in deltas:
            match delta:
                case Content(text):
                    yield from self._add_text(text)
                case Reasoning(text):
                    yield from self._add_reasoning(text)
                case InvalidCall():
                    self._invalid_calls.append(delta)
                case CallStart(_, call_id, name):
                    yield from self._close_item("completed")
                    item = {"id": new_id("fc", "_"), "type": "function_call", "status": "in_progress"}
                    yield self._open_item({**item, "call_id": call_id, "name": name, "arguments": ""})
                case CallArguments(_, text):
                    self._output[-1]["arguments"] += text
                    yield self._of_item("response.function_call_arguments.delta", delta=text)

    def end(self, written: OutputStream, failure: str | None = None) -> Iterator[Event]:
        """The last events. `failure` is why it could not be finished."""
        reason = written.result.outputs[0].finish_reason
        num_reasoning = self._measure(written)
        more: dict[str, Any] = as_field(self._invalid_calls)
        if self._metrics:
            more["metrics"] = request_metrics(written)
        if failure is not None:
            more["error"] = {"code": "server_error", "message": failure}
            ending: Ending = "failed"
        elif reason == FinishReason.LENGTH.value:
            more["incomplete_details"] = {"reason": "max_output_tokens"}
            ending = "incomplete"
        else:
            ending = "completed" if reason == FinishReason.STOP.value else "cancelled"
        yield from self._end(ending, _usage(written, num_reasoning), more)

    def _end(self, ending: Ending, usage: dict[str, Any], more: dict[str, Any]) -> Iterator[Event]:
        """`more` are fields that only a response that has ended has."""
        yield from self._close_item("completed" if ending == "completed" else "incomplete")
        self.response |= {"status": ending, "usage": usage, **more}
        if ending == "completed":
            self.response["completed_at"] = seconds_now()
        # There is no event of its own for a response that was cancelled.
        kind = "incomplete" if ending == "cancelled" else ending
        yield self._event(f"response.{kind}", response=self.response)

    def _add_text(self, text: str) -> Iterator[Event]:
        if not self._is_open or self._output[-1]["type"] != "message":
            yield from self._close_item("completed")
            item = {"id": new_id("msg", "_"), "type": "message", "status": "in_progress", "role": "assistant"}
            yield self._open_item({**item, "content": []})
            part: dict[str, Any] = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
            self._output[-1]["content"].append(part)
            yield self._of_item("response.content_part.added", content_index=0, part=part)
        part = self._output[-1]["content"][0]
        part["text"] += text
        logprobs, self._logprobs = self._logprobs, []
        part["logprobs"] += logprobs
        yield self._of_item("response.output_text.delta", content_index=0, delta=text, logprobs=logprobs)

    def _add_reasoning(self, text: str) -> Iterator[Event]:
        if not self._is_open or self._output[-1]["type"] != "reasoning":
            yield from self._close_item("completed")
            item = {"id": new_id("rs", "_"), "type": "reasoning", "status": "in_progress", "summary": []}
            yield self._open_item({**item, "content": []})
            part: dict[str, Any] = {"type": "reasoning_text", "text": ""}
            self._output[-1]["content"].append(part)
            yield self._of_item("response.content_part.added", content_index=0, part=part)
        self._output[-1]["content"][0]["text"] += text
        yield self._of_item("response.reasoning_text.delta", content_index=0, delta=text)

    def _open_item(self, item: dict[str, Any]) -> Event:
        self._output.append(item)
        self._is_open = True
        return self._event("response.output_item.added", output_index=len(self._output) - 1, item=item)

    def _close_item(self, status: str) -> Iterator[Event]:
        if not self._is_open:
            return
        self._is_open = False
        item = self._output[-1]
        item["status"] = status
        if item["type"] == "message":
            part = item["content"][0]
            part["logprobs"] += self._logprobs
            self._logprobs = []
            text, logprobs = part["text"], part["logprobs"]
            yield self._of_item("response.output_text.done", content_index=0, text=text, logprobs=logprobs)
            yield self._of_item("response.content_part.done", content_index=0, part=part)
        elif item["type"] == "reasoning":
            part = item["content"][0]
            yield self._of_item("response.reasoning_text.done", content_index=0, text=part["text"])
            yield self._of_item("response.content_part.done", content_index=0, part=part)
        else:
            arguments = {"name": item["name"], "arguments": item["arguments"]}
            yield self._of_item("response.function_call_arguments.done", **arguments)
        yield self._event("response.output_item.done", output_index=len(self._output) - 1, item=item)

    def _of_item(self, kind: str, **fields: Any) -> Event:
        position = {"item_id": self._output[-1]["id"], "output_index": len(self._output) - 1}
        return self._event(kind, **position, **fields)

    def _event(self, kind: str, **fields: Any) -> Event:
        event = {"type": kind, "sequence_number": self._num_events, **fields}
        self._num_events += 1
        return event


def _usage(written: OutputStream, num_reasoning: int | None) -> dict[str, Any]:
    used = written.usage
    return {
        "input_tokens": used.num_prompt_tokens,
        "input_tokens_details": {"cached_tokens": used.num_cached_tokens, "cache_write_tokens": 0},
        "output_tokens": used.num_generated_tokens,
        "output_tokens_details": {"reasoning_tokens": num_reasoning or 0},
        "total_tokens": used.num_prompt_tokens + used.num_generated_tokens,
    }
