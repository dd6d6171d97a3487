"""uvicorn as the service runs it: connections within limits of size and time, and a drain before the end."""

import asyncio
import signal
import socket
import struct
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from archerfish.console import logger
from archerfish.server.service import Service

MAX_HEADER_BYTES = 64 * 1024
"""Maximum size of a request line and its headers, and of the trailers after a chunked body with them, in bytes."""
_MAX_PIPELINED = 16
"""Maximum number of requests that wait on one connection for the response before theirs."""
_MIN_READ_RATE = 16 * 1024
"""Bytes per second that a client must take of a response that waits for it, measured over the time limit."""
_MAX_UNSENT_IN_KERNEL = 32 * 1024
"""Bytes of a response that the kernel holds before it sends them; the others wait here, where they can be seen."""
_TICKS_BETWEEN_CHECKS = 2
"""Of a tenth of a second, between two looks at how long connections take."""
_LAST_GOODBYE = 3
"""Seconds for connections to close after requests have been given their time."""
_NO_LINGER = struct.pack("ii", 1, 0)
"""A socket that lingers for zero seconds is reset when it is closed."""


class ServiceConnection(HttpToolsProtocol):
    """uvicorn's HTTP within limits of size and time.

    Times are checked by `check`, which the server calls for all of its connections a few times a second.
    """

    def __init__(self, *arguments: Any, timeout: float, **options: Any) -> None:
        """`timeout`: seconds for headers, for a body that no route reads, and for taking a response."""
        super().__init__(*arguments, **options)
        self._timeout = timeout
        self._headers_due: float | None = None
        """When the headers must have ended; None between requests and within a body."""
        self._body_due: float | None = None
        """When a body must have ended that no route reads; None outside of bodies."""
        self._header_bytes = 0
        self._unfinished_bytes = 0
        """Bytes received since the parser last found something in them: part of a header line that goes on."""
        self._refuses = False
        """Whether what is received from now on is ignored."""
        self._unsent: tuple[int, float] | None = None
        """How many bytes of a response waited for the client, and since when."""
        self._answering: RequestResponseCycle | None = None
        """The request whose response is being sent, or was sent last."""

    # -- what is received -----------------------------------------------------------------------------------------

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        with suppress(AttributeError, OSError):  # Not on every system.
            option = (socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _MAX_UNSENT_IN_KERNEL)
            transport.get_extra_info("socket").setsockopt(*option)
        self._headers_due = self.loop.time() + self._timeout

    def data_received(self, data: bytes) -> None:
        if self._refuses:
            return
        self._unfinished_bytes += len(data)
        super().data_received(data)
        if self._unfinished_bytes > MAX_HEADER_BYTES and not self._refuses:
            self.send_400_response("")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._header_bytes = 0
        if self._headers_due is None:
            self._headers_due = self.loop.time() + self._timeout

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value))
        if self._body_due is None:
            super().on_header(name, value)
        # Otherwise it is a trailer: taken for a header, it could say who asks after that was decided.

    def _count(self, num_bytes: int) -> None:
        self._unfinished_bytes = 0
        self._header_bytes += num_bytes
        if self._header_bytes > MAX_HEADER_BYTES:
            raise ValueError("too many headers")  # uvicorn answers with send_400_response.

    def on_headers_complete(self) -> None:
        if len(self.pipeline) >= _MAX_PIPELINED:
            raise ValueError("too many requests that wait")
        self._headers_due, self._body_due = None, self.loop.time() + self._timeout
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._unfinished_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._unfinished_bytes, self._body_due = 0, None
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.pipeline:
            self.flow.pause_reading()  # uvicorn resumes it, although the client is ahead already.

    def send_400_response(self, msg: str) -> None:
        if not self._stop_taking():
            return
        if max(self._header_bytes, self._unfinished_bytes) <= MAX_HEADER_BYTES:
            super().send_400_response(msg)
            return
        text = f"the request line and headers exceed {MAX_HEADER_BYTES:,} bytes".encode()
        head = b"HTTP/1.1 431 Request Header Fields Too Large\r\nConnection: close\r\nContent-Type: text/plain\r\n"
        self.transport.write(head + b"Content-Length: %d\r\n\r\n%b" % (len(text), text))
        self.transport.close()

    def _stop_taking(self) -> bool:
        """Ignore what is received from now on. Whether nothing has to be sent before the connection ends."""
        self._refuses, self._headers_due, self._body_due = True, None, None
        cycle = self.cycle
        if cycle is None or cycle.response_complete:
            return True
        if not cycle.more_body:
            cycle.keep_alive = False  # What was asked before is answered; then the connection ends.
            return False
        if cycle.response_started or self.pipeline:
            self.transport.close()
            return False
        return True

    # -- its end --------------------------------------------------------------------------------------------------

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._answering = cycle
        super()._start_asgi_task(cycle, app)

    def connection_lost(self, exc: Exception | None) -> None:
        cycle = self._answering
        if cycle is not None and not cycle.response_complete:
            # uvicorn says so to the latest request only, and that one may still wait for this one's response.
            cycle.disconnected = True
            cycle.message_event.set()
        super().connection_lost(exc)

    # -- what takes too long --------------------------------------------------------------------------------------

    def resume_writing(self) -> None:
        self._unsent = None
        super().resume_writing()

    def check(self, now: float) -> None:
        """End the connection if its client is too slow."""
        if self._does_not_read(now):
            logger.info("reset a connection whose client read too little of its response in %g s", self._timeout)
            self._reset()
        elif self._headers_due is not None and now > self._headers_due:
            if self._stop_taking():
                self.transport.close()
        elif self._body_due is not None and now > self._body_due:
            if self.cycle.response_started:
                self.transport.close()
            else:  # A route that reads the body has a limit of its own for it.
                self._body_due = now + self._timeout

    def _reset(self) -> None:
        """Drop the connection with what was not sent; the kernel would go on offering it to the client."""
        with suppress(OSError):
            self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
        self.transport.abort()

    def _does_not_read(self, now: float) -> bool:
        waiting = self.transport.get_write_buffer_size()
        if not waiting or not (self.flow.write_paused or self.transport.is_closing()):
            self._unsent = None
            return False
        if self._unsent is None:
            self._unsent = (waiting, now)
        before, since = self._unsent
        if now - since < self._timeout:
            return False
        self._unsent = (waiting, now)
        return before - waiting < _MIN_READ_RATE * self._timeout


class HttpServer(uvicorn.Server):
    """Keeps answering while it drains, so that clients and health checks learn of it."""

    def __init__(self, app: FastAPI, service: Service) -> None:
        config = service.config
        self._service = service
        self._draining: asyncio.Task[None] | None = None
        self.reason: Exception | None = None
        """Why it could not go on."""
        settings: dict[str, Any] = {
            "loop": "none",
            "http": partial(ServiceConnection, timeout=config.body_timeout),
            "ws": "none",
            "log_config": None,
            "access_log": False,
            "server_header": False,
            "lifespan": "on",
            "timeout_keep_alive": max(1, round(config.keep_alive_timeout)),
            "timeout_graceful_shutdown": _LAST_GOODBYE,
            "ssl_certfile": config.tls_certificate,
            "ssl_keyfile": config.tls_key,
        }
        super().__init__(uvicorn.Config(app, **settings))

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        for server in self.servers:
            for listening in server.sockets:
                host, port = listening.getsockname()[:2]
                scheme = "https" if self._service.config.tls_certificate else "http"
                shown = f"[{host}]" if ":" in host else host
                logger.info("listening at %s://%s:%d", scheme, shown, port)

    async def on_tick(self, counter: int) -> bool:
        if counter % _TICKS_BETWEEN_CHECKS == 0:
            now = asyncio.get_running_loop().time()
            for connection in tuple(self.server_state.connections):
                assert isinstance(connection, ServiceConnection)
                connection.check(now)
        return await super().on_tick(counter)

    @contextmanager
    def capture_signals(self) -> Any:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._stop_requested)
        try:
            yield
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)

    def _stop_requested(self) -> None:
        """The first time, let requests finish; the second, do not."""
        if self._draining is not None:
            self.force_exit = self.should_exit = True
            return
        logger.info("stopping: open requests have %g seconds to finish", self._service.config.shutdown_timeout)
        self._draining = asyncio.create_task(self._drain())

    async def _drain(self) -> None:
        await self._service.drain()
        self.should_exit = True
