"""/v1/messages and /v1/messages/count_tokens, in the shape of Anthropic's API."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from pydantic_core import from_json
from starlette.responses import Response

from archerfish.api.ask import Ask
from archerfish.api.bodies.messages import CountTokensBody, MessagesBody
from archerfish.api.conversation import Conversation
from archerfish.api.model import ServedModel
from archerfish.api.replies import new_id, request_metrics
from archerfish.api.tool_use import AnswerReader
from archerfish.api.tools import CallArguments, CallStart, Content
from archerfish.engine.outputs import StreamOutput
from archerfish.errors import InvalidParameter
from archerfish.server.answers import Answer, unless_disconnected
from archerfish.server.beside import read_in_time
from archerfish.server.errors import as_api_error
from archerfish.server.replies import json_reply
from archerfish.server.requests import LimitedRoute
from archerfish.server.service import service_of
from archerfish.server.sse import EventResponse, event

_BETWEEN_PINGS = 10.0
"""Seconds without a token after which a stream shows that it is alive."""

_PING = event({"type": "ping"}, "ping")


router = APIRouter(route_class=LimitedRoute)


@router.post("/v1/messages")
async def create_message(body: MessagesBody, http: Request) -> Response:
    """Answer a conversation."""
    service = service_of(http)
    conversation = await read_in_time(http, partial(_conversation, service.model, body))
    params = conversation.params(body, max_tokens=body.max_tokens, stop=body.stop_sequences)
    answer = await service.open(http, Ask(prompts=[conversation.prompt], params=params, body=body))
    writer = MessageWriter(service.model.name, answer, conversation.reader(), metrics=body.metrics)
    try:
        if body.stream:
            return EventResponse(_stream(writer, answer), answer.headers)
        await unless_disconnected(http, _write(writer, answer))
        return json_reply(writer.message, answer.headers)
    finally:
        if not body.stream:
            answer.close()


@router.post("/v1/messages/count_tokens")
async def count_tokens(body: CountTokensBody, http: Request) -> Response:
    """How long a conversation is, as the model will see it."""
    model = service_of(http).model

    def count() -> int:
        return len(model.intake.token_ids(_conversation(model, body).prompt, add_special_tokens=False))

    return json_reply({"input_tokens": await read_in_time(http, count)})


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


async def _write(writer: "MessageWriter", answer: Answer) -> None:
    async for _ in _events(writer, answer):
        pass


async def _stream(writer: "MessageWriter", answer: Answer) -> AsyncIterator[bytes]:
    try:
        async for told in _events(writer, answer):
            yield _PING if told is None else event(told, told["type"])
            if told is not None and told["type"] == "message_start":
                yield _PING
    except Exception as error:
        yield event(as_api_error(error).anthropic_body, "error")
    finally:
        answer.close()


async def _events(writer: "MessageWriter", answer: Answer) -> AsyncIterator[dict[str, Any] | None]:
    """All that happens to a message; None where nothing has happened for a while."""
    while True:
        try:
            async with asyncio.timeout(_BETWEEN_PINGS):
                pieces = await answer.next()
        except TimeoutError:
            yield None
            continue
        if not pieces:
            return
        for piece in pieces:
            if piece.finish_reason == "error":
                raise answer.failure(piece.error)
            for told in writer.add(piece):
                yield told


class MessageWriter:
    """A message in the making. Events come while it changes, so they must be read for anything to happen."""

    def __init__(self, model_name: str, answer: Answer, reader: AnswerReader, *, metrics: bool) -> None:
        self._answer = answer
        self._reader = reader
        self._metrics = metrics
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
        deltas = self._reader.feed(piece.text)
        if piece.finish_reason is not None:
            deltas += self._reader.finish()
        for delta in deltas:
            match delta:
                case Content(text):
                    if not self._is_open or self._content[-1]["type"] != "text":
                        yield from self._open_block({"type": "text", "text": "", "citations": None})
                    self._content[-1]["text"] += text
                    yield self._block_event("content_block_delta", delta={"type": "text_delta", "text": text})
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
        more = {"metrics": request_metrics(self._answer.written)} if self._metrics else {}
        self.message |= {**ending, "usage": self._usage(), **more}
        yield {"type": "message_delta", "delta": ending, "usage": self._usage(), **more}
        yield {"type": "message_stop"}

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
        used = self._answer.usage
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
    # Not JSON: told the way Anthropic's documentation tells clients to send it back.
    return value if isinstance(value, dict) else {"INVALID_JSON": arguments}
