"""Around every request: who it is, an id for it, a line in the log, and a count."""

import json
import time
import uuid
from collections.abc import Mapping

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from archerfish.console import logger
from archerfish.server.errors import ApiError, error_response
from archerfish.server.keys import Key
from archerfish.server.service import Service

_OPEN_TO_ALL = ("/health", "/version", "/page/")
"""Needs no key: says nothing of anybody's requests."""

ANONYMOUS = Key(name="")


class Access:
    """Refuses what has no key, and tells of each request once it has been answered."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app = app
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers, state = Headers(scope=scope), scope.setdefault("state", {})
        if "caller" in state:  # It comes from inside: only we can set this.
            state["log"] = {}
            await self._app(scope, receive, send)
            return
        state["request_id"] = request_id = _given_id(headers) or uuid.uuid4().hex
        told: dict[str, object] = {}
        state["log"] = told
        started, status = self._service.clock(), 0

        async def note(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)["X-Request-Id"] = request_id
            await send(message)

        try:
            caller = self._caller(scope["path"], headers)
            if caller is None:
                refusal = ApiError(
                    401, "this service needs a key: send Authorization: Bearer KEY", code="invalid_api_key"
                )
                await error_response(refusal)(scope, receive, note)
            else:
                state["caller"] = caller
                await self._app(scope, receive, note)
        finally:
            route = scope.get("route")  # Never the path itself: clients can make up as many as they like.
            self._service.metrics.http_response(getattr(route, "path", "other"), status)
            self._log(scope, status, self._service.clock() - started, {"id": request_id, **told})

    def _caller(self, path: str, headers: Headers) -> Key | None:
        keys = self._service.keys
        if not keys or path == "/" or path.startswith(_OPEN_TO_ALL):
            return ANONYMOUS
        return keys.find(headers.get("authorization"), headers.get("x-api-key"))

    def _log(self, scope: Scope, status: int, seconds: float, told: Mapping[str, object]) -> None:
        if scope["path"].startswith(_OPEN_TO_ALL) and status == 200:
            return  # Asked every few seconds by whoever watches.
        line = {"method": scope["method"], "path": scope["path"], "status": status, "ms": round(seconds * 1000, 1)}
        if self._service.config.log_json:
            logger.info(json.dumps({"time": time.time(), **line, **told}))
        else:
            more = " ".join(f"{name}={value}" for name, value in told.items())
            logger.info("%s %s %s %s ms %s", *line.values(), more)


def _given_id(headers: Headers) -> str | None:
    """The client's own id for the request, if it is one that can be logged and sent back."""
    given = headers.get("x-request-id", "")
    return given if given and len(given) <= 128 and given.isprintable() and given.isascii() else None
