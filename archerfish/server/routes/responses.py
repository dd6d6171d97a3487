"""/v1/responses."""

from collections.abc import AsyncIterator
from typing import Annotated

import msgspec
from fastapi import APIRouter, Query, Request
from starlette.requests import HTTPConnection
from starlette.responses import Response

from archerfish.api.bodies.responses import ResponsesBody, chat_messages
from archerfish.api.responses import ResponsesCall
from archerfish.errors import InvalidParameter
from archerfish.server.answers import unless_disconnected
from archerfish.server.background_response import BackgroundResponse
from archerfish.server.errors import ApiError
from archerfish.server.replies import json_reply
from archerfish.server.requests import takes
from archerfish.server.response_store import History, Kept, ResponseStore, store_of
from archerfish.server.service import service_of
from archerfish.server.sse import EventResponse

router = APIRouter()


@router.post("/v1/responses", openapi_extra=takes(ResponsesBody))
async def create_response(http: Request) -> Response:
    """Answer a conversation, or continue one that is kept here."""
    service, store, tenant = service_of(http), store_of(http), _tenant_of(http)
    before: History | None = None

    def find_history(response_id: str) -> list[bytes]:
        nonlocal before
        before = _continued(store, tenant, response_id)
        return before.turns

    turn: ResponsesCall = await service.read(http, "/v1/responses", find_history)
    body = turn.body
    answer = await service.open(http, turn.inputs)

    def keep(run: BackgroundResponse) -> None:
        store.end(tenant, run.response_id, _kept(run, turn, before) if body.is_kept else None)

    run = BackgroundResponse(answer, turn.writer(), keep, is_told=bool(body.stream))
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


def _kept(run: BackgroundResponse, turn: ResponsesCall, before: History | None) -> Kept:
    """For the store, at its end."""
    answer = msgspec.json.encode(chat_messages(run.response["output"]))
    history = History(answer, History(turn.added, before))
    events = tuple(run.events) if turn.body.background and turn.body.stream else None
    return Kept(msgspec.json.encode(run.response), run.response["status"], history, events)


def _continued(store: ResponseStore, tenant: str, response_id: str) -> History:
    if store.running(tenant, response_id) is not None:
        raise InvalidParameter("previous_response_id", response_id, "it is still being written; wait for its end")
    kept = store.find(tenant, response_id)
    if kept is None:
        message = f"there is no response {response_id!r} any more; send the conversation itself"
        raise ApiError(400, message, param="previous_response_id", code="previous_response_not_found")
    if kept.status not in ("completed", "incomplete"):
        raise InvalidParameter("previous_response_id", response_id, f"it was not finished: {kept.status}")
    return kept.history


async def _only_while_followed(run: BackgroundResponse) -> AsyncIterator[bytes]:
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
