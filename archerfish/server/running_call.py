"""A call whose requests are with the engine: their outputs become one reply, or chunks in the order they come."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import aclosing
from typing import Any, NamedTuple

import msgspec

from archerfish.api.endpoint_call import Chunk, EndpointCall
from archerfish.api.errors import failed_reply
from archerfish.engine.outputs import OutputStream, StreamOutput
from archerfish.engine.request_stream import RequestStream
from archerfish.server.errors import ApiError, as_api_error
from archerfish.server.streaming import DONE, event

_PING_SECONDS = 10.0
"""Time without a token after which a stream shows that it is alive."""
_MAX_SIZE_IN_LOOP = 2048
"""Size of replies that are written in the event loop; larger ones are written in a thread, so that no one waits."""

_encoder = msgspec.json.Encoder()


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
        """One for each prompt."""
        self.error: ApiError | None = None
        """Why the chunks ended early."""
        self._on_close = on_close
        self._closed = False

    @property
    def outputs(self) -> list[OutputStream]:
        """The outputs as far as they have come, one for each prompt."""
        return [stream.output for stream in self.streams]

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
        if sum(output.size for output in self.outputs) <= _MAX_SIZE_IN_LOOP:
            return self._reply()
        return await asyncio.to_thread(self._reply)

    async def _complete(self, stream: RequestStream) -> None:
        while await stream.next():
            pass
        if stream.output.has_failed:
            raise _failure(stream, stream.output.error)

    def _reply(self) -> CallReply:
        value = self.call.reply(self.outputs)
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
        return self._chunks(self.call.begin(self.outputs))

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
