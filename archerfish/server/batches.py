"""Batches in the service: their lines go through the same endpoints as everybody's requests, in the batch class."""

import asyncio
from collections.abc import Mapping
from typing import Any

import msgspec
from starlette.types import ASGIApp, Message

from archerfish.api.endpoints import check_line
from archerfish.jobs.lines import RunnerSettings
from archerfish.jobs.records import LineResult, new_id
from archerfish.jobs.runner import BatchRunner
from archerfish.jobs.store import JobStore
from archerfish.request import RequestClass
from archerfish.server.keys import Key
from archerfish.server.service import Service

_IN_FLIGHT = 256


def new_runner(store: JobStore, service: Service, app: ASGIApp) -> BatchRunner:
    """Answers lines with the application itself."""

    async def answer(endpoint: str, body: Mapping[str, Any], _custom_id: str, tenant: str) -> LineResult:
        await service.engine.wait_ready()
        request_id = new_id("req_")
        caller = service.keys.owner(tenant)
        status, data = await _call(app, endpoint, msgspec.json.encode(body), caller, request_id)
        return LineResult(status, msgspec.json.decode(data), request_id)

    settings = RunnerSettings(max_in_flight=_IN_FLIGHT)
    return BatchRunner(store, answer, check_body=check_line, settings=settings)


async def _call(app: ASGIApp, path: str, body: bytes, caller: Key, request_id: str) -> tuple[int, bytes]:
    """A request that comes from inside: it needs no key, and nobody can hang up on it."""
    status, pieces = 500, []
    gone = asyncio.Event()
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Message:
        if messages:
            return messages.pop()
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        nonlocal status
        if message["type"] == "http.response.start":
            status = message["status"]
        else:
            pieces.append(message.get("body", b""))

    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())],
        "server": None,
        "client": None,
        "state": {"caller": caller, "request_id": request_id, "request_class": RequestClass.BATCH},
    }
    await app(scope, receive, send)
    return status, b"".join(pieces)
