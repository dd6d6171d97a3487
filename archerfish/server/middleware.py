"""Surrounds every request: its id, key and origin, its line in the log, its metrics, and its span if tracing is on."""

import ipaddress
import uuid
from collections.abc import Mapping
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from archerfish.console import logger
from archerfish.errors import ConfigError
from archerfish.server.errors import ApiError, as_api_error, error_response
from archerfish.server.keys import Key
from archerfish.server.requests import ANONYMOUS, RequestContext
from archerfish.server.service import Service
from archerfish.server.tracing import RequestTrace

_OPEN_TO_ALL = ("/health", "/version", "/page/")
"""Needs no key: says nothing of anybody's requests."""
_WATCHED = (*_OPEN_TO_ALL, "/metrics", "/live", "/usage")
"""Paths that monitors poll: they get no span."""


class Origins:
    """The names that a service without keys is known by, and the pages that may call it.

    A page in a browser must not speak for its user. Where clients send a key, only those who have one are answered.
    Without keys anything on this machine may send requests, a browser too: a page of any site can send them here, and
    by DNS rebinding (its own name made to mean this address) even read the replies. Such requests name the site in
    their Host or Origin header.
    """

    def __init__(self, host: str, allowed_hosts: str | None = None, cors_origins: str | None = None) -> None:
        """`allowed_hosts` and `cors_origins` are the settings: names with commas between them, * for all."""
        self._hosts = {_name(host), "localhost", *_listed(allowed_hosts)}
        self._origins = {origin.lower() for origin in _listed(cors_origins)}
        for name in _listed(allowed_hosts):
            if "/" in name or " " in name:
                raise ConfigError(f"--allowed-hosts: {name!r} is not a host name; write example.org, or * for all")

    def problem(self, host: str | None, origin: str | None) -> str | None:
        """Why a request with these headers is refused; None if it is not."""
        if host is not None and not self._knows(_name(host)):
            return f"the Host {host!r} is none of this service's names; add it with --allowed-hosts, or use keys"
        if origin is None or "*" in self._origins or origin.lower() in self._origins:
            return None
        if host is not None and urlsplit(origin).netloc.lower() == host.lower():
            return None
        return f"pages of the Origin {origin!r} may not call this service; allow them with --cors-origins"

    def _knows(self, name: str) -> bool:
        # An IP address is not a name that another party could resolve to this machine.
        return name in self._hosts or "*" in self._hosts or _is_address(name)


def _listed(names: str | None) -> list[str]:
    return [] if names is None else [name.strip().lower() for name in names.split(",") if name.strip()]


def _name(host: str) -> str:
    """Without port and brackets."""
    host = host.strip().lower().removesuffix(".")
    if host.startswith("["):
        return host[1:].partition("]")[0]
    name, _, port = host.rpartition(":")
    return name if port.isdigit() and ":" not in name else host


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


class RequestMiddleware:
    """Refuses requests without a valid key, and logs and counts each request when it has been answered."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app = app
        self._service = service
        config = service.config
        self._origins = Origins(config.host, config.allowed_hosts, config.cors_origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers, state = Headers(scope=scope), scope.setdefault("state", {})
        request_id = _given_id(headers) or uuid.uuid4().hex
        state["context"] = context = RequestContext(request_id, log={"id": request_id})
        context.trace = trace = self._begin_trace(scope, headers, request_id)
        if trace is not None:
            context.log["trace_id"] = trace.trace_id
        started, status = self._service.clock(), 0
        has_unread_body = headers.get("content-length", "0") != "0" or "transfer-encoding" in headers

        async def receive_body() -> Message:
            nonlocal has_unread_body
            message = await receive()
            has_unread_body = has_unread_body and bool(message.get("more_body"))
            return message

        async def note(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                shown = MutableHeaders(scope=message)
                shown["X-Request-Id"] = request_id
                if has_unread_body:
                    # What follows would be read for nothing, for as long as it comes.
                    shown["Connection"] = "close"
            await send(message)

        try:
            self._check_origin(headers)
            caller = self._caller(scope["path"], headers)
            if caller is None:
                refusal = ApiError(
                    401, "this service needs a key: send Authorization: Bearer KEY", code="invalid_api_key"
                )
                await error_response(refusal, scope["path"])(scope, receive_body, note)
            else:
                context.caller = caller
                await self._app(scope, receive_body, note)
        except Exception as error:
            if status:
                raise  # It is too late to say anything else.
            await error_response(as_api_error(error), scope["path"])(scope, receive_body, note)
        finally:
            # Never the path itself: clients can make up as many as they like.
            route = getattr(scope.get("route"), "path", None)
            self._service.metrics.http_response(route or "other", status)
            if trace is not None:
                trace.responded(route, status)
            self._log(scope, status, self._service.clock() - started, context.log)

    def _begin_trace(self, scope: Scope, headers: Headers, request_id: str) -> RequestTrace | None:
        tracing, path = self._service.tracing, scope["path"]
        if tracing is None or path == "/" or path.startswith(_WATCHED):
            return None
        return tracing.begin(scope["method"], headers, request_id)

    def _check_origin(self, headers: Headers) -> None:
        if self._service.keys:
            return  # Pages do not know them.
        problem = self._origins.problem(headers.get("host"), headers.get("origin"))
        if problem is not None:
            raise ApiError(403, problem, code="origin_not_allowed")

    def _caller(self, path: str, headers: Headers) -> Key | None:
        keys = self._service.keys
        if not keys or path == "/" or path.startswith(_OPEN_TO_ALL):
            return ANONYMOUS
        return keys.find(headers.get("authorization"), headers.get("x-api-key"))

    def _log(self, scope: Scope, status: int, seconds: float, fields: Mapping[str, object]) -> None:
        if scope["path"].startswith(_OPEN_TO_ALL) and status == 200:
            return  # Monitors poll it every few seconds.
        line = {"method": scope["method"], "path": scope["path"], "status": status, "ms": round(seconds * 1000, 1)}
        more = " ".join(f"{name}={_on_one_line(value)}" for name, value in fields.items())
        shown = [_on_one_line(value) for value in line.values()]
        logger.info("%s %s %s %s ms %s", *shown, more, extra={"fields": {**line, **fields}})


def _on_one_line(value: object) -> str:
    """Clients choose paths and users: none of them may look like a line of its own."""
    text = str(value)
    return text if text.isprintable() else ascii(text)


def _given_id(headers: Headers) -> str | None:
    """The client's own id for the request, if it is one that can be logged and sent back."""
    given = headers.get("x-request-id", "")
    return given if given and len(given) <= 128 and given.isprintable() and given.isascii() else None
