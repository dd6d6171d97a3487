"""Server-sent events, and clients that go away while a response is being made."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from archerfish.server.errors import ApiError, as_api_error

Result = TypeVar("Result")

DONE = b"data: [DONE]\n\n"

_encoder = msgspec.json.Encoder()


def event(value: object, name: str | None = None) -> bytes:
    """Return one event that contains a JSON value."""
    data = _encoder.encode(value)
    return b"data: %b\n\n" % data if name is None else b"event: %b\ndata: %b\n\n" % (name.encode(), data)


class EventResponse(Response):
    """Sends events as they come. When the client goes away the iterator is closed, in the middle if need be."""

    media_type = "text/event-stream"

    def __init__(
        self,
        events: AsyncIterator[bytes],
        headers: dict[str, str] | None = None,
        on_close: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_close` is called at the end, even if no event was ever read."""
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no", **(headers or {})})
        del self.headers["content-length"]
        self._events = events
        self._on_close = on_close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await _unless_disconnected(receive, self._send_all(send))
        finally:
            self._on_close()

    async def _send_all(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        try:
            async for data in self._events:
                await send({"type": "http.response.body", "body": data, "more_body": True})
        except Exception as error:
            # The status has been sent: the error can only be part of the stream.
            await send({"type": "http.response.body", "body": event(as_api_error(error).body), "more_body": True})
        finally:
            close = getattr(self._events, "aclose", None)
            if close is not None:
                await close()
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def unless_disconnected(http: Request, work: Awaitable[Result]) -> Result:
    """Return the result, or cancel the work and raise an ApiError, which no one reads, if the client leaves first."""
    done = await _unless_disconnected(http.receive, work)
    if done is None:
        raise ApiError(499, "the client closed the connection")
    return done.result()


async def _unless_disconnected(receive: Receive, work: Awaitable[Result]) -> "asyncio.Future[Result] | None":
    """Return the completed work; None if the client left before, and the work was cancelled."""
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        return working if working.done() else None
    finally:
        for task in (working, leaving):
            task.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
