"""/v1/responses."""

from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from archerfish.api.bodies.responses import ResponsesBody
from archerfish.api.responses import ResponsesCall
from archerfish.errors import InvalidParameter
from archerfish.server.errors import ApiError
from archerfish.server.replies import EventResponse, json_reply
from archerfish.server.requests import context_of, takes
from archerfish.server.response_store import BackgroundResponse, StoredResponse
from archerfish.server.routes.generation import answer
from archerfish.server.service import service_of

router = APIRouter()


@router.post("/v1/responses", openapi_extra=takes(ResponsesBody))
async def create_response(http: Request) -> Response:
    """Answer a conversation, or continue one that is stored here."""
    service, context = service_of(http), context_of(http)
    call: ResponsesCall = await service.read(http, "/v1/responses")
    body, store = call.body, service.responses
    if not (body.stream or body.background):
        return await answer(http, call)

    def end(response: BackgroundResponse) -> None:
        events = tuple(response.events) if body.background and body.stream else None
        stored = StoredResponse.of(call, response.response, context.history, events) if body.is_stored else None
        store.end(context.tenant, response.response_id, stored)

    response = BackgroundResponse(await service.open(context, call), call, end)
    store.begin(context.tenant, response)
    if not body.stream:
        return json_reply(response.response, context.reply_headers)
    if body.background:
        return EventResponse(response.follow(), context.reply_headers)
    # Without a client it is not written any further.
    return EventResponse(response.follow(), context.reply_headers, response.cancel)


@router.get("/v1/responses/{response_id}")
async def read_response(
    response_id: str, http: Request, stream: bool = False, starting_after: Annotated[int, Query(ge=0)] | None = None
) -> Response:
    """Return a response as far as it is written. One that is streamed in the background can be followed again."""
    start = 0 if starting_after is None else starting_after + 1
    store, tenant = service_of(http).responses, context_of(http).tenant
    running = store.running(tenant, response_id)
    if running is not None:
        if not stream:
            return json_reply(running.response)
        if running.call.body.background and running.has_events:
            return EventResponse(running.follow(start))
    stored = store.find(tenant, response_id)
    if running is None and stored is None:
        raise _not_found(response_id)
    if not stream:
        assert stored is not None
        return Response(stored.response, media_type="application/json")
    if stored is None or stored.events is None:
        raise InvalidParameter(
            "stream", True, "only responses created with background and stream can be followed later"
        )
    return EventResponse(_replayed(stored.events[start:]))


@router.delete("/v1/responses/{response_id}")
async def delete_response(response_id: str, http: Request) -> Response:
    """Delete a response; one that is being written is cancelled."""
    if not service_of(http).responses.delete(context_of(http).tenant, response_id):
        raise _not_found(response_id)
    return json_reply({"id": response_id, "object": "response", "deleted": True})


@router.post("/v1/responses/{response_id}/cancel")
async def cancel_response(response_id: str, http: Request) -> Response:
    """Cancel a response. One that has ended stays as it is."""
    store, tenant = service_of(http).responses, context_of(http).tenant
    running = store.running(tenant, response_id)
    if running is not None:
        running.cancel()
        await running.wait()
        return json_reply(running.response)
    stored = store.find(tenant, response_id)
    if stored is None:
        raise _not_found(response_id)
    return Response(stored.response, media_type="application/json")


async def _replayed(events: tuple[bytes, ...]) -> AsyncIterator[bytes]:
    for data in events:
        yield data


def _not_found(response_id: str) -> ApiError:
    return ApiError(404, f"there is no response {response_id!r} here", code="response_not_found")
