"""/v1/files and /v1/batches."""

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated, Any, BinaryIO

from fastapi import APIRouter, Query, Request
from pydantic import Field
from starlette.responses import Response, StreamingResponse

from archerfish.api.bodies.common import Body
from archerfish.jobs.files import UPLOAD_PURPOSES
from archerfish.jobs.store import JobStore
from archerfish.server.errors import ApiError
from archerfish.server.replies import json_reply
from archerfish.server.requests import LimitedRoute, context_of
from archerfish.server.service import service_of

files = APIRouter()
batches = APIRouter(route_class=LimitedRoute)

_PIECE = 1 << 20
_PARTS = {
    "file": {"type": "string", "contentMediaType": "application/octet-stream"},
    "purpose": {"type": "string", "enum": list(UPLOAD_PURPOSES)},
}
_MULTIPART_CONTENT: dict[str, Any] = {
    "multipart/form-data": {"schema": {"type": "object", "properties": _PARTS, "required": list(_PARTS)}}
}


class BatchBody(Body):
    input_file_id: Annotated[str, Field(min_length=1)]
    endpoint: str
    completion_window: str = "24h"
    metadata: dict[str, str] | None = None


def _store(http: Request) -> JobStore:
    store = service_of(http).jobs
    if store is None:
        raise ApiError(400, "this service stores no files and batches; start it with --data-dir", code="no_data_dir")
    return store


def _tenant(http: Request) -> str:
    return context_of(http).tenant


@files.post("/v1/files", openapi_extra={"requestBody": {"required": True, "content": _MULTIPART_CONTENT}})
async def upload(http: Request) -> Response:
    """Keep a file."""
    stored = await service_of(http).uploads.receive(http, _store(http).files, _tenant(http))
    return json_reply(stored.as_object())


@files.get("/v1/files")
async def list_files(
    http: Request,
    purpose: str | None = None,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 10_000,
    after: str | None = None,
    order: str = "desc",
) -> Response:
    options = {"tenant": _tenant(http), "purpose": purpose, "limit": limit, "after": after, "order": order}
    page = await asyncio.to_thread(_store(http).files.page, **options)  # type: ignore[arg-type]
    return json_reply(page.as_object())


@files.get("/v1/files/{file_id}")
async def get_file(file_id: str, http: Request) -> Response:
    stored_file = await asyncio.to_thread(_store(http).files.get, file_id, tenant=_tenant(http))
    return json_reply(stored_file.as_object())


@files.delete("/v1/files/{file_id}")
async def delete_file(file_id: str, http: Request) -> Response:
    await asyncio.to_thread(_store(http).files.delete, file_id, tenant=_tenant(http))
    return json_reply({"id": file_id, "object": "file", "deleted": True})


@files.get("/v1/files/{file_id}/content")
async def file_content(file_id: str, http: Request) -> Response:
    content = await asyncio.to_thread(_store(http).files.open, file_id, tenant=_tenant(http))
    return StreamingResponse(_read(content), media_type="application/octet-stream")


async def _read(content: BinaryIO) -> AsyncIterator[bytes]:
    with content:
        while piece := await asyncio.to_thread(content.read, _PIECE):
            yield piece


@batches.post("/v1/batches")
async def create_batch(body: BatchBody, http: Request) -> Response:
    """Answer every line of a file, in the time that other requests leave."""
    store, service = _store(http), service_of(http)
    batch = await asyncio.to_thread(
        store.batches.create,
        body.input_file_id,
        body.endpoint,
        body.completion_window,
        metadata=body.metadata,
        tenant=_tenant(http),
    )
    service.wake_batches()
    return json_reply(batch.as_object())


@batches.get("/v1/batches")
async def list_batches(
    http: Request, limit: Annotated[int, Query(ge=1, le=100)] = 20, after: str | None = None
) -> Response:
    page = await asyncio.to_thread(_store(http).batches.page, tenant=_tenant(http), limit=limit, after=after)
    return json_reply(page.as_object())


@batches.get("/v1/batches/{batch_id}")
async def get_batch(batch_id: str, http: Request) -> Response:
    batch = await asyncio.to_thread(_store(http).batches.get, batch_id, tenant=_tenant(http))
    return json_reply(batch.as_object())


@batches.post("/v1/batches/{batch_id}/cancel")
async def cancel_batch(batch_id: str, http: Request) -> Response:
    batch = await asyncio.to_thread(_store(http).batches.cancel, batch_id, tenant=_tenant(http))
    service_of(http).wake_batches()
    return json_reply(batch.as_object())
