"""Metrics for Prometheus, usage of keys, the live page and its data."""

import asyncio
import base64
from collections.abc import AsyncIterator
from pathlib import Path

from fastapi import APIRouter, Request
from starlette.responses import FileResponse, Response

from archerfish.metrics.history import SECONDS_BETWEEN_SAMPLES
from archerfish.metrics.service import CONTENT_TYPE
from archerfish.server.errors import ApiError
from archerfish.server.replies import EventResponse, event, json_reply
from archerfish.server.requests import context_of
from archerfish.server.service import Service, service_of

router = APIRouter()

_PAGE = Path(__file__).parents[1] / "page"
_FILES = {path.name: path for path in _PAGE.iterdir() if path.suffix in (".js", ".css", ".svg")}
_HEADERS = {
    # Only what is served from here: the page shows text that a model wrote.
    "Content-Security-Policy": "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


@router.get("/metrics")
async def metrics(http: Request) -> Response:
    """All metrics, in Prometheus' text format. Usage of other keys is shown to admin keys only."""
    service, caller = service_of(http), context_of(http).caller
    sees_all = caller.admin or not service.keys
    text = service.metrics.prometheus(None if sees_all else caller.name)
    return Response(text, media_type=CONTENT_TYPE)


@router.get("/usage")
async def usage(http: Request) -> Response:
    """Return the usage of the caller's ended requests since the start."""
    service, caller = service_of(http), context_of(http).caller
    used = service.usage(caller)
    counts = {
        "requests": used.num_requests,
        "input_tokens": used.num_prompt_tokens,
        "cached_tokens": used.num_cached_tokens,
        "output_tokens": used.num_generated_tokens,
    }
    return json_reply({"object": "usage", "key": caller.name or None, "since": service.started_at, **counts})


@router.get("/live")
async def live(http: Request) -> Response:
    """Send a snapshot every second as server-sent events; the first includes the last minutes."""
    return EventResponse(_snapshots(service_of(http)))


async def _snapshots(service: Service) -> AsyncIterator[bytes]:
    before = {"history": service.history.samples()}
    while True:
        blocks = await service.engine.block_map()
        yield event({**service.snapshot(), **before, "kv_map": base64.b64encode(blocks).decode()})
        before = {}
        await asyncio.sleep(SECONDS_BETWEEN_SAMPLES)


@router.get("/", include_in_schema=False)
async def page() -> Response:
    return FileResponse(_PAGE / "index.html", headers=_HEADERS)


@router.get("/page/{name}", include_in_schema=False)
async def page_file(name: str) -> Response:
    if name not in _FILES:
        raise ApiError(404, f"there is no file {name!r}")
    return FileResponse(_FILES[name], headers=_HEADERS)
