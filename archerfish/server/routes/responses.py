"""/v1/responses."""

from collections.abc import AsyncIterator
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Query, Request
from starlette.requests import HTTPConnection
from starlette.responses import Response

from archerfish.errors import InvalidParameter
from archerfish.server.answers import unless_disconnected
from archerfish.server.bodies.responses import LOGPROBS, ResponsesBody, chat_messages
from archerfish.server.conversation import Conversation
from archerfish.server.errors import ApiError
from archerfish.server.replies import json_reply, new_id, seconds_now
from archerfish.server.requests import LimitedRoute
from archerfish.server.response_run import Run
from archerfish.server.response_store import History, Kept, ResponseStore, store_of
from archerfish.server.response_writer import ResponseWriter
from archerfish.server.service import Service, service_of
from archerfish.server.sse import EventResponse
from archerfish.server.structure import structured

router = APIRouter(route_class=LimitedRoute)


@router.post("/v1/responses")
async def create_response(body: ResponsesBody, http: Request) -> Response:
    """Answer a conversation, or continue one that is kept here."""
    service, store, tenant = service_of(http), store_of(http), _tenant_of(http)
    turn = Turn(service, body, _continued(store, tenant, body.previous_response_id))
    answer = service.open(http, turn.conversation.prompt, turn.params, body, add_special_tokens=False)
    run = Run(
        answer,
        ResponseWriter(turn.head(), turn.conversation.reader()),
        lambda run: store.end(tenant, run.response_id, turn.kept(run) if body.is_kept else None),
        is_told=bool(body.stream),
        metrics=body.metrics,
    )
    store.begin(tenant, run)
    if body.stream:
        return EventResponse(run.follow() if body.background else _only_while_followed(run), answer.headers)
    if not body.background:
        try:
            await unless_disconnected(http, run.wait())
        finally:
            run.cancel()
        if run.failure is not None:
            raise run.failure
    return json_reply(run.response, answer.headers)


@router.get("/v1/responses/{response_id}")
async def read_response(
    response_id: str, http: Request, stream: bool = False, starting_after: Annotated[int, Query(ge=0)] | None = None
) -> Response:
    """A response as far as it has come. One that was made to be streamed in the background can be followed again."""
    start = 0 if starting_after is None else starting_after + 1
    store, tenant = store_of(http), _tenant_of(http)
    run = store.running(tenant, response_id)
    if run is not None:
        if not stream:
            return json_reply(run.response)
        if run.response["background"] and run.is_told:
            return EventResponse(run.follow(start))
    kept = store.find(tenant, response_id)
    if run is None and kept is None:
        raise _not_found(response_id)
    if not stream:
        assert kept is not None
        return Response(kept.response, media_type="application/json")
    if kept is None or kept.events is None:
        raise InvalidParameter("stream", True, "only one made with background and stream can be followed later")
    return EventResponse(_replayed(kept.events[start:]))


@router.delete("/v1/responses/{response_id}")
async def delete_response(response_id: str, http: Request) -> Response:
    """Forget a response; one that is running is cancelled."""
    if not store_of(http).forget(_tenant_of(http), response_id):
        raise _not_found(response_id)
    return json_reply({"id": response_id, "object": "response", "deleted": True})


@router.post("/v1/responses/{response_id}/cancel")
async def cancel_response(response_id: str, http: Request) -> Response:
    """End a response where it is. One that has ended stays as it is."""
    store, tenant = store_of(http), _tenant_of(http)
    run = store.running(tenant, response_id)
    if run is not None:
        run.cancel()
        await run.wait()
        return json_reply(run.response)
    kept = store.find(tenant, response_id)
    if kept is None:
        raise _not_found(response_id)
    return Response(kept.response, media_type="application/json")


class Turn:
    """One turn of a conversation: what is asked of the engine, and what is kept of it."""

    def __init__(self, service: Service, body: ResponsesBody, before: History | None) -> None:
        self._service = service
        self._body = body
        self._before = before
        service.check_model(body.model)
        if body.background and not body.is_kept:
            raise InvalidParameter("store", False, "what is written in the background must be kept to be read")
        if body.top_logprobs is not None and not body.include:
            raise InvalidParameter("top_logprobs", body.top_logprobs, f'it needs include = ["{LOGPROBS}"]')
        instructions = [] if body.instructions is None else [{"role": "system", "content": body.instructions}]
        self.conversation = Conversation(
            service,
            [*instructions, *(before.messages() if before is not None else ()), *body.messages],
            tools=body.chat_tools,
            tool_choice=body.chat_tool_choice,
            parallel=body.parallel_tool_calls is not False,
            form=None if body.text is None else structured(body.text.response_format),
        )
        if body.include and self.conversation.may_call:
            raise InvalidParameter("include", LOGPROBS, "they are told of words only; leave out the tools")
        self.params = self.conversation.params(
            body, max_tokens=body.max_output_tokens, logprobs=(body.top_logprobs or 0) if body.include else None
        )

    def head(self) -> dict[str, Any]:
        """The response before its first token."""
        body = self._body
        form = None if body.text is None else body.text.format
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
            "model": self._service.model_name,
            "output": [],
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": body.previous_response_id,
            "prompt_cache_key": body.prompt_cache_key,
            "reasoning": {"effort": None, "summary": None},
            "safety_identifier": body.safety_identifier,
            "service_tier": "default",
            "store": body.is_kept,
            "temperature": self.params.temperature,
            "text": {"format": {"type": "text"} if form is None else form.model_dump(by_alias=True, exclude_none=True)},
            "tool_choice": choice if isinstance(choice, str) else choice.model_dump(),
            "tools": [tool.model_dump() for tool in body.tools or ()],
            "top_logprobs": body.top_logprobs or 0,
            "top_p": self.params.top_p,
            "truncation": "disabled",
            "usage": None,
            "user": body.user,
        }

    def kept(self, run: Run) -> Kept:
        """For the store, at its end."""
        history = History([*self._body.messages, *chat_messages(run.response["output"])], self._before)
        events = tuple(run.events) if self._body.background and self._body.stream else None
        return Kept(msgspec.json.encode(run.response), run.response["status"], history, events)


def _continued(store: ResponseStore, tenant: str, response_id: str | None) -> History | None:
    if response_id is None:
        return None
    if store.running(tenant, response_id) is not None:
        raise InvalidParameter("previous_response_id", response_id, "it is still being written; wait for its end")
    kept = store.find(tenant, response_id)
    if kept is None:
        message = f"there is no response {response_id!r} any more; send the conversation itself"
        raise ApiError(400, message, param="previous_response_id", code="previous_response_not_found")
    if kept.status not in ("completed", "incomplete"):
        raise InvalidParameter("previous_response_id", response_id, f"it was not finished: {kept.status}")
    return kept.history


async def _only_while_followed(run: Run) -> AsyncIterator[bytes]:
    try:
        async for data in run.follow():
            yield data
    finally:
        run.cancel()


async def _replayed(events: tuple[bytes, ...]) -> AsyncIterator[bytes]:
    for data in events:
        yield data


def _tenant_of(http: HTTPConnection) -> str:
    return str(http.state.caller.name)


def _not_found(response_id: str) -> ApiError:
    return ApiError(404, f"there is no response {response_id!r} here", code="response_not_found")
