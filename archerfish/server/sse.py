"""Server-sent events: what is sent while it is being made, to a client that may go away."""

import asyncio
from collections.abc import AsyncIterator

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from archerfish.server.errors import as_api_error

DONE = b"data: [DONE]\n\n"

_encoder = msgspec.json.Encoder()


def event(value: object, name: str | None = None) -> bytes:
    """One event that holds a JSON value."""
    data = _encoder.encode(value)
    return b"data: %b\n\n" % data if name is None else b"event: %b\ndata: %b\n\n" % (name.encode(), data)


class EventResponse(Response):
    """Sends events as they come. When the client goes away the iterator is closed, in the middle if need be."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncIterator[bytes], headers: dict[str, str] | None = None) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no", **(headers or {})})
        del self.headers["content-length"]
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sending = asyncio.ensure_future(self._send_all(send))
        leaving = asyncio.ensure_future(_disconnected(receive))
        try:
            await asyncio.wait((sending, leaving), return_when=asyncio.FIRST_COMPLETED)
        finally:
            leaving.cancel()
            sending.cancel()
            await asyncio.gather(sending, leaving, return_exceptions=True)

    async def _send_all(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        try:
            async for data in self._events:
                await send({"type": "http.response.body", "body": data, "more_body": True})
        except Exception as error:
            # The status has been sent: all that is left is to say it in the stream.
            await send({"type": "http.response.body", "body": event(as_api_error(error).body), "more_body": True})
        finally:
            close = getattr(self._events, "aclose", None)
            if close is not None:
                await close()
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
