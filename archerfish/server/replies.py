"""Replies to clients: running calls, as JSON or as server-sent events, and clients that leave before the end."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import aclosing
from typing import Any, NamedTuple, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from archerfish.api.endpoint_call import Chunk, EndpointCall
from archerfish.api.errors import failed_reply
from archerfish.engine.outputs import RequestStream, StreamOutput
from archerfish.server.errors import ApiError, as_api_error

_encoder = msgspec.json.Encoder()

Result = TypeVar("Result")

DONE = b"data: [DONE]\n\n"

_PING_SECONDS = 10.0
"""Time without a token after which a stream shows that it is alive."""
_MAX_SIZE_IN_LOOP = 2048
"""Size of replies that are written in the event loop; larger ones are written in a thread, so that no one waits."""


def json_reply(value: object, headers: Mapping[str, str] | None = None, status: int = 200) -> Response:
    """Return a response with `value` as JSON; bytes are JSON already."""
    content = value if isinstance(value, bytes) else _encoder.encode(value)
    return Response(content, status, dict(headers or {}), media_type="application/json")


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


class CallReply(NamedTuple):
    """The reply to a call."""

    value: dict[str, Any]
    body: bytes
    """The value as JSON."""


class RunningCall:
    """A call that is being answered. It must be closed whatever happens; closing it early cancels its requests."""

    def __init__(self, call: EndpointCall, on_close: Callable[[RequestStream], None]) -> None:
        """`on_close` is called for each stream when the call is closed."""
        self.call = call
        self.streams: list[RequestStream] = []
        """The outputs as far as they have come, one for each prompt."""
        self.error: ApiError | None = None
        """Why the chunks ended early."""
        self._on_close = on_close
        self._closed = False

    def close(self) -> None:
        """End the call. A second time does nothing."""
        if not self._closed:
            self._closed = True
            for stream in self.streams:
                self._on_close(stream)

    # -- all at once ----------------------------------------------------------------------------------------------

    async def reply(self) -> CallReply:
        """Wait for all answers; raise the ApiError that ended one of them."""
        # Each stream takes in its events as they come: read one after another, the last would take in all at once.
        tasks = [asyncio.ensure_future(self._complete(stream)) for stream in self.streams]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
        if sum(stream.size for stream in self.streams) <= _MAX_SIZE_IN_LOOP:
            return self._reply()
        return await asyncio.to_thread(self._reply)

    async def _complete(self, stream: RequestStream) -> None:
        while await stream.next():
            pass
        if stream.has_failed:
            raise _failure(stream, stream.error)

    def _reply(self) -> CallReply:
        value = self.call.reply(self.streams)
        return CallReply(value, _encoder.encode(value))

    # -- chunk by chunk -------------------------------------------------------------------------------------------

    async def events(self) -> AsyncIterator[bytes]:
        """Yield the chunks as server-sent events."""
        async with aclosing(self.chunks()) as chunks:
            async for chunk in chunks:
                yield event(chunk, chunk.get("type"))
        if self.call.has_done_marker and self.error is None:
            yield DONE

    def chunks(self) -> AsyncGenerator[Chunk, None]:
        """Begin the stream, and yield its chunks as answers grow. The call is closed at the end."""
        return self._chunks(self.call.begin(self.streams))

    async def _chunks(self, first: Iterator[Chunk]) -> AsyncGenerator[Chunk, None]:
        call = self.call
        try:
            for chunk in first:
                yield chunk
            async for index, pieces in self._pieces():
                if not pieces and call.ping is not None:
                    yield call.ping
                for piece in pieces:
                    if piece.finish_reason == "error":
                        self.error = _failure(self.streams[index], piece.error)
                        for chunk in call.fail(self.error.reply, piece):
                            yield chunk
                        return
                    for chunk in call.add(index, piece):
                        yield chunk
            for chunk in call.end():
                yield chunk
        except Exception as error:
            self.error = as_api_error(error)
            for chunk in call.fail(self.error.reply):
                yield chunk
        finally:
            self.close()

    async def _pieces(self) -> AsyncIterator[tuple[int, list[StreamOutput]]]:
        """Yield what is added to any of the outputs, with the index of its prompt; nothing where a ping is due."""
        seconds = None if self.call.ping is None else _PING_SECONDS
        if len(self.streams) == 1:  # The usual case, without a task for each piece.
            while True:
                try:
                    async with asyncio.timeout(seconds):
                        added = await self.streams[0].next()
                except TimeoutError:
                    yield 0, []
                    continue
                if not added:
                    return
                yield 0, added
        waiting = {asyncio.ensure_future(stream.next()): index for index, stream in enumerate(self.streams)}
        try:
            while waiting:
                done, _ = await asyncio.wait(waiting, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
                if not done:
                    yield 0, []
                for task in done:
                    index = waiting.pop(task)
                    if pieces := task.result():
                        waiting[asyncio.ensure_future(self.streams[index].next())] = index
                        yield index, pieces
        finally:
            for task in waiting:
                task.cancel()


def _failure(stream: RequestStream, reason: str | None) -> ApiError:
    """Return the error that a client gets because a request failed."""
    reply = failed_reply(reason)
    if stream.engine_failed:
        return ApiError(503, reply.message, code="engine_failed", headers={"Retry-After": "5"})
    return ApiError.of(reply)
