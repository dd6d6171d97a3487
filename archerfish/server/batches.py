"""Batches in the service: their lines go through the same endpoints as everybody's requests, in the batch class."""

import asyncio
from typing import Any, NamedTuple

import msgspec
from starlette.types import ASGIApp, Message

from archerfish.engine.async_engine import DEATHS_WINDOW, MOST_DEATHS
from archerfish.errors import EngineStopped, StepFailed
from archerfish.jobs.lines import NotNow, RunnerSettings
from archerfish.jobs.records import LineReply, new_id
from archerfish.jobs.retrying_storage import Wait
from archerfish.jobs.runner import BatchRunner
from archerfish.jobs.store import JobStore
from archerfish.request import RequestClass
from archerfish.server.keys import Key
from archerfish.server.service import Service

_IN_FLIGHT = 256
_NOT_NOW = (429, 503)
"""The service did not take the request, or the engine failed with it."""
_ENGINE_FAILED = "engine_failed"


def new_runner(store: JobStore, service: Service, app: ASGIApp, wait: Wait = asyncio.sleep) -> BatchRunner:
    """Answers lines with the application itself."""

    async def answer(endpoint: str, body: bytes, _custom_id: str, tenant: str) -> LineReply:
        try:
            await service.wait_ready()
        except EngineStopped as error:
            raise NotNow("the engine has ended") from error  # Another process will answer it.
        request_id = new_id("req_")
        caller = service.keys.owner(tenant)
        # The bytes of the input go in and those of the reply come out: parsing either here would hold up all others.
        reply = await _call(app, endpoint, body, caller, request_id)
        if reply.status in _NOT_NOW:
            raise _not_answered(msgspec.json.decode(reply.body)["error"], reply.retry_after)
        return LineReply(reply.status, reply.body, request_id)

    settings = RunnerSettings(
        max_in_flight=_IN_FLIGHT, max_failures=MOST_DEATHS - 1, failure_window=DEATHS_WINDOW + 1.0
    )
    return BatchRunner(store, answer, settings=settings, wait=wait, clock=service.clock)


def _not_answered(error: dict[str, Any], retry_after: float | None) -> StepFailed | NotNow:
    """Only an engine that failed while it had the line says anything about the line."""
    if error["code"] == _ENGINE_FAILED:
        return StepFailed(error["message"])
    return NotNow(error["code"] or error["type"], retry_after)


class _Reply(NamedTuple):
    status: int
    body: bytes
    retry_after: float | None
    """Seconds, if the service says so."""


async def _call(app: ASGIApp, path: str, body: bytes, caller: Key, request_id: str) -> _Reply:
    """A request that comes from inside: it needs no key, and nobody can hang up on it."""
    status, pieces, headers = 500, [], {}
    gone = asyncio.Event()
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Message:
        if messages:
            return messages.pop()
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        nonlocal status, headers
        if message["type"] == "http.response.start":
            status, headers = message["status"], dict(message["headers"])
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
    retry_after = headers.get(b"retry-after")
    return _Reply(status, b"".join(pieces), None if retry_after is None else float(retry_after))
