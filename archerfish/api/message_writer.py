"""Builds a message of Anthropic's API from pieces of an answer; each change is an event."""

from collections.abc import Callable, Iterator
from typing import Any

from pydantic_core import from_json

from archerfish.api.answer_deltas import CallArguments, CallStart, Content, InvalidCall, Reasoning, as_field
from archerfish.api.answer_reader import AnswerReader
from archerfish.api.replies import new_id, request_metrics
from archerfish.engine.outputs import OutputStream, StreamOutput


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
