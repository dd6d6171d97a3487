"""Requests to the service: what it knows of each, and its body, read within limits of size and time."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI, Request, Response
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from pydantic.json_schema import models_json_schema
from pydantic_core import from_json
from starlette.requests import ClientDisconnect, HTTPConnection

from archerfish.api.bodies.common import Body
from archerfish.request import RequestClass
from archerfish.server.errors import ApiError
from archerfish.server.keys import Key
from archerfish.server.tracing import RequestTrace

if TYPE_CHECKING:
    from archerfish.server.response_store import ConversationHistory

ANONYMOUS = Key(name="")

SMALL_BODY = 64 * 1024
"""Bytes that are parsed and validated within a few milliseconds, whatever they hold."""

_REFERENCE = "#/components/schemas/{model}"


@dataclass(slots=True)
class RequestContext:
    """One request to the service, from a client or from a batch."""

    request_id: str
    """For logs and replies."""
    caller: Key = ANONYMOUS
    request_class: RequestClass = RequestClass.ONLINE
    log: dict[str, Any] = field(default_factory=dict)
    """Further fields of its line in the log."""
    trace: RequestTrace | None = None
    history: "ConversationHistory | None" = None
    """The stored conversation that the request continues."""
    reply_headers: dict[str, str] = field(default_factory=dict)
    """Headers of the response: what is left of the caller's limits."""

    @property
    def tenant(self) -> str:
        """The name of the caller's key."""
        return self.caller.name


def context_of(http: HTTPConnection) -> RequestContext:
    """Return the context that the middleware gave a request."""
    context: RequestContext = http.state.context
    return context


@dataclass(slots=True)
class BodyLimits:
    """Limits on the size and time of each body, and on the size of all that are held at a time."""

    max_bytes: int
    """Of one body."""
    timeout: float
    """Seconds in which it must arrive."""
    max_held_bytes: int
    """Of all bodies, what is beyond SMALL_BODY in each of them. One key may have half of it."""
    held_bytes: Counter[str] = field(default_factory=Counter)
    """By key."""

    @contextmanager
    def held(self, key: str, body: bytes) -> Iterator[None]:
        """Count a body that is in memory already as held within the block, or raise an ApiError."""
        if len(body) > self.max_bytes:
            raise _too_large(self.max_bytes)
        num_bytes = max(0, len(body) - SMALL_BODY)
        self._hold(key, num_bytes)
        try:
            yield
        finally:
            self._release(key, num_bytes)

    @asynccontextmanager
    async def received(self, http: Request) -> AsyncIterator[bytes]:
        """Receive a body, which counts as held within the block; raise an ApiError if it is too large or too slow."""
        body, held = bytearray(), 0
        key = context_of(http).tenant
        try:
            try:
                async with asyncio.timeout(self.timeout):
                    async for piece in _pieces(http, self.max_bytes):
                        more = max(0, len(body) + len(piece) - SMALL_BODY) - held
                        self._hold(key, more)
                        held += more
                        body += piece
            except TimeoutError:
                message = f"the body did not arrive within {self.timeout:g} seconds; send it faster"
                raise ApiError(408, message) from None
            except ClientDisconnect:
                raise ApiError(499, "the client closed the connection") from None
            yield bytes(body)
        finally:
            self._release(key, held)

    def _release(self, key: str, num_bytes: int) -> None:
        self.held_bytes[key] -= num_bytes
        if not self.held_bytes[key]:
            del self.held_bytes[key]

    def _hold(self, key: str, num_bytes: int) -> None:
        own, others = self.held_bytes[key] + num_bytes, self.held_bytes.total() - self.held_bytes[key]
        if num_bytes and (own > self.max_held_bytes // 2 or own + others > self.max_held_bytes):
            message = "too many large bodies are being read; try again in a few seconds"
            raise ApiError(503, message, code="overloaded", headers={"Retry-After": "5"})
        self.held_bytes[key] = own


async def _pieces(http: Request, max_bytes: int) -> AsyncIterator[bytes]:
    declared = http.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > max_bytes:
        raise _too_large(max_bytes)
    num_bytes = 0
    async for piece in http.stream():
        num_bytes += len(piece)
        if num_bytes > max_bytes:
            raise _too_large(max_bytes)
        yield piece


def _too_large(max_bytes: int) -> ApiError:
    return ApiError(413, f"the body is larger than {max_bytes:,} bytes; send less, or start with --max-body-bytes")


def check_content_type(http: Request) -> None:
    """Refuse what a page of another origin may send without being asked: forms and plain text."""
    kind = http.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json" and not (kind.startswith("application/") and kind.endswith("+json")):
        given = f"is {kind!r}" if kind else "is missing"
        raise ApiError(400, f"the Content-Type {given}; send the body as JSON with Content-Type: application/json")


class LimitedRoute(APIRoute):
    """Gives handlers a request whose small JSON body is parsed and validated at once."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def with_limits(request: Request) -> Response:
            return await handle(_SmallRequest(request.scope, request.receive))

        return with_limits


class _SmallRequest(Request):
    async def body(self) -> bytes:
        if not hasattr(self, "_body"):
            limits: BodyLimits = self.app.state.limits
            small = replace(limits, max_bytes=min(limits.max_bytes, SMALL_BODY), held_bytes=Counter())
            async with small.received(self) as body:
                self._body = body
        return self._body

    async def json(self) -> Any:
        try:
            return from_json(await self.body())
        except ValueError as error:
            raise ApiError(400, f"the body is not valid JSON: {error}") from None


# -- how bodies that handlers read for themselves are described -------------------------------------------------------

_DESCRIBED: dict[str, type[Body]] = {}


def takes(body: type[Body]) -> dict[str, Any]:
    """Return the `openapi_extra` of a route that reads this JSON body."""
    _DESCRIBED[body.__name__] = body
    schema = {"$ref": _REFERENCE.format(model=body.__name__)}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def describe(app: FastAPI) -> Callable[[], dict[str, Any]]:
    """The application's `openapi`, with the bodies of `takes`."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            described = get_openapi(title=app.title, version=app.version, routes=app.routes)
            inputs = [(body, "validation") for body in _DESCRIBED.values()]
            _, schemas = models_json_schema(inputs, ref_template=_REFERENCE)  # type: ignore[arg-type]
            described.setdefault("components", {}).setdefault("schemas", {}).update(schemas["$defs"])
            app.openapi_schema = described
        return app.openapi_schema

    return openapi
