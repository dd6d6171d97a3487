"""/v1/chat/completions."""

from collections.abc import AsyncIterator
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from archerfish.engine.outputs import CompletionOutput, StreamOutput
from archerfish.errors import InvalidParameter
from archerfish.server.answers import Answer, unless_disconnected
from archerfish.server.bodies.chat import ChatBody, ToolChoice
from archerfish.server.conversation import Conversation
from archerfish.server.replies import json_reply, new_id, request_metrics, seconds_now, token_logprobs, usage
from archerfish.server.requests import LimitedRoute
from archerfish.server.service import Service, service_of
from archerfish.server.sse import DONE, EventResponse, event
from archerfish.server.structure import structured
from archerfish.server.tool_use import AnswerReader
from archerfish.server.tools import Answer as ReadAnswer
from archerfish.server.tools import CallArguments, CallStart, Content, Delta

router = APIRouter(route_class=LimitedRoute)

_FIELDS_OF_THEIR_OWN = {"messages", "tools", "add_generation_prompt", "continue_final_message"}


@router.post("/v1/chat/completions")
async def chat_completions(body: ChatBody, http: Request) -> Response:
    """Answer a conversation."""
    service = service_of(http)
    chat = Chat(service, body)
    answer = service.open(http, chat.prompt, chat.params, body, add_special_tokens=False)
    try:
        if body.stream:
            return EventResponse(chat.stream(answer), answer.headers)
        await unless_disconnected(http, answer.complete())
        return json_reply(chat.reply(answer), answer.headers)
    finally:
        if not body.stream:
            answer.close()


class Chat:
    """One conversation: the prompt it comes to, and how the answer is told."""

    def __init__(self, service: Service, body: ChatBody) -> None:
        self._service = service
        self._body = body
        service.check_model(body.model)
        if body.top_logprobs is not None and not body.logprobs:
            raise InvalidParameter("top_logprobs", body.top_logprobs, "it needs logprobs = true")
        if body.max_tokens is not None and body.max_completion_tokens is not None:
            raise InvalidParameter("max_tokens", body.max_tokens, "give it or max_completion_tokens, not both")
        for name in _FIELDS_OF_THEIR_OWN & body.chat_template_kwargs.keys():
            raise InvalidParameter(f"chat_template_kwargs.{name}", "...", f"give it as {name}")
        self._conversation = Conversation(
            service,
            [message.model_dump(exclude_none=True) for message in body.messages],
            tools=body.tools,
            tool_choice=body.tool_choice.model_dump() if isinstance(body.tool_choice, ToolChoice) else body.tool_choice,
            parallel=body.parallel_tool_calls is not False,
            form=structured(body.response_format),
            template={
                "add_generation_prompt": body.add_generation_prompt and not body.continue_final_message,
                "continue_final_message": body.continue_final_message,
                **body.chat_template_kwargs,
            },
        )
        self.prompt = self._conversation.prompt
        self.params = self._conversation.params(
            body,
            max_tokens=body.max_completion_tokens or body.max_tokens,
            logprobs=(body.top_logprobs or 0) if body.logprobs else None,
        )
        self._id = new_id("chatcmpl")
        self._created = seconds_now()

    def reply(self, answer: Answer) -> dict[str, Any]:
        output = answer.output
        return {
            **self._head("chat.completion"),
            "choices": [self._choice(one) for one in output.outputs],
            "usage": usage([output]),
            **({"metrics": request_metrics(answer)} if self._body.metrics else {}),
        }

    async def stream(self, answer: Answer) -> AsyncIterator[bytes]:
        head = self._head("chat.completion.chunk")
        with_usage = self._body.wants_usage
        nothing: dict[str, Any] = {"usage": None} if with_usage else {}
        readers = [self._conversation.reader() for _ in range(self.params.n)]
        try:
            for index in range(self.params.n):
                delta = {"role": "assistant", "content": ""}
                choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
                yield event({**head, "choices": [choice], **nothing})
            while pieces := await answer.next():
                for piece in pieces:
                    if piece.finish_reason == "error":
                        yield event(answer.failure(piece.error).body)
                        return
                    for choice in self._stream_choices(piece, readers[piece.index]):
                        yield event({**head, "choices": [choice], **nothing})
            if with_usage or self._body.metrics:
                more = {"metrics": request_metrics(answer)} if self._body.metrics else {}
                yield event({**head, "choices": [], "usage": usage([answer.output]) if with_usage else None, **more})
            yield DONE
        finally:
            answer.close()

    def _stream_choices(self, piece: StreamOutput, reader: AnswerReader) -> list[dict[str, Any]]:
        """What one step added: text, pieces of tool calls, and at last why it ended."""
        read = reader.feed(piece.text)
        if piece.finish_reason is not None:
            read += reader.finish()
        deltas = [_delta(one) for one in read]
        logprobs = None if piece.logprobs is None else {"content": token_logprobs(piece.token_ids, piece.logprobs)}
        choices: list[dict[str, Any]] = [
            {"index": piece.index, "delta": delta, "logprobs": logprobs if not place else None, "finish_reason": None}
            for place, delta in enumerate(deltas or ([{}] if logprobs else []))
        ]
        if piece.finish_reason is not None:
            reason = self._finish_reason(piece.finish_reason, reader)
            end = {"index": piece.index, "delta": {}, "logprobs": None, "finish_reason": reason}
            choices.append({**end, "stop_reason": piece.stop_reason})
        return choices

    def _choice(self, one: CompletionOutput) -> dict[str, Any]:
        reader = self._conversation.reader()
        message = _message(reader.read(one.text))
        logprobs = None if one.logprobs is None else {"content": token_logprobs(one.token_ids, one.logprobs)}
        return {
            "index": one.index,
            "message": message,
            "logprobs": logprobs,
            "finish_reason": self._finish_reason(one.finish_reason, reader),
            "stop_reason": one.stop_reason,
        }

    def _finish_reason(self, reason: str | None, reader: AnswerReader) -> str | None:
        # Calling the function that the request named is no reason to end. As in OpenAI's API.
        called = reader.has_calls and not self._conversation.names_function
        return "tool_calls" if called and reason == "stop" else reason

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self._id, "object": kind, "created": self._created, "model": self._service.model_name}


def _message(answer: ReadAnswer) -> dict[str, Any]:
    calls = [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in answer.calls
    ]
    if not calls:
        return {"role": "assistant", "content": answer.content}
    return {"role": "assistant", "content": answer.content or None, "tool_calls": calls}


def _delta(delta: Delta) -> dict[str, Any]:
    match delta:
        case Content(text):
            return {"content": text}
        case CallStart(index, call_id, name):
            function = {"name": name, "arguments": ""}
            return {"tool_calls": [{"index": index, "id": call_id, "type": "function", "function": function}]}
        case CallArguments(index, text):
            return {"tool_calls": [{"index": index, "function": {"arguments": text}}]}
