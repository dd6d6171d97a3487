"""HTTP connections with little overhead and exact times of received bytes. Knows nothing of the contents.

General clients spend too long on each piece of a stream to measure thousands of requests a second.
"""

import asyncio
import ssl
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, cast
from urllib.parse import urlsplit

import httptools

from archerfish.errors import ConfigError

OnData = Callable[[bytes, float], None]
"""Called with each piece of a body, and the time at which it arrived."""


class ServerAddress(NamedTuple):
    """The address of a server."""

    host: str
    port: int
    is_secure: bool
    path: str
    """Prefix of every path, without a slash at its end."""

    @classmethod
    def parse(cls, url: str) -> "ServerAddress":
        parts = urlsplit(url if "//" in url else f"http://{url}")
        try:
            port = parts.port
        except ValueError:
            port = -1
        if parts.scheme not in ("http", "https") or not parts.hostname or port == -1 or parts.query or parts.fragment:
            raise ConfigError(f"--url: {url!r} must look like http://host:8000")
        is_secure = parts.scheme == "https"
        return cls(parts.hostname, port or (443 if is_secure else 80), is_secure, parts.path.rstrip("/"))

    @property
    def authority(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def url(self) -> str:
        return f"http{'s' if self.is_secure else ''}://{self.authority}{self.path}"


class ConnectionBroke(Exception):
    """The server disconnected, could not be reached or did not speak HTTP."""


class _Connection(asyncio.Protocol):
    """A connection, with at most one request on it."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._transport: asyncio.Transport | None = None
        self._parser: Any = None
        self._on_data: OnData | None = None
        self._done: asyncio.Future[int] | None = None
        self._now = 0.0
        self.heard_anything = False
        self.is_open = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transport is one in all but name.
        self.is_open = True

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        self._fail(f"the connection was closed{'' if exc is None else f' ({exc})'}")

    def data_received(self, data: bytes) -> None:
        self._now = self._clock()
        self.heard_anything = True
        if self._parser is None:
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(f"the server does not speak HTTP ({error})")
            self.close()

    def request(self, head_and_body: bytes, on_data: OnData) -> "asyncio.Future[int]":
        """Send a request. The future returns the status when the whole response has arrived."""
        assert self._transport is not None and self._done is None
        self._parser = httptools.HttpResponseParser(self)
        self._on_data = on_data
        self.heard_anything = False
        self._done = asyncio.get_running_loop().create_future()
        self._transport.write(head_and_body)
        return self._done

    def close(self) -> None:
        self.is_open = False
        if self._transport is not None:
            self._transport.close()

    # -- what the parser calls

    def on_body(self, body: bytes) -> None:
        if self._on_data is not None:
            self._on_data(body, self._now)

    def on_message_complete(self) -> None:
        status, keep = self._parser.get_status_code(), self._parser.should_keep_alive()
        if status < 200:  # 100 Continue and similar responses precede the final one.
            return
        done, self._done, self._on_data = self._done, None, None
        if not keep:
            self.close()
        if done is not None and not done.done():
            done.set_result(status)

    def _fail(self, reason: str) -> None:
        done, self._done, self._on_data = self._done, None, None
        if done is not None and not done.done():
            done.set_exception(ConnectionBroke(reason))


class HttpClient:
    """Sends requests, each on a connection of its own at the time; idle connections are reused."""

    def __init__(
        self, origin: ServerAddress, headers: Mapping[str, str], clock: Callable[[], float] = time.monotonic
    ) -> None:
        for name, value in headers.items():
            if any(character in name + value for character in "\r\n"):
                raise ConfigError(f"--header: {name!r} has a line break in it")
        self._origin = origin
        self._clock = clock
        self._headers = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        self._idle: list[_Connection] = []
        self._security = ssl.create_default_context() if origin.is_secure else None

    async def post(self, path: str, body: bytes, on_data: OnData) -> int:
        """Send a request and return the status. Pieces of the body are passed on as they arrive."""
        about = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        return await self._send(f"POST {self._origin.path}{path} HTTP/1.1\r\n{self._head()}{about}\r\n", body, on_data)

    async def get(self, path: str) -> tuple[int, bytes]:
        pieces: list[bytes] = []
        head = f"GET {self._origin.path}{path} HTTP/1.1\r\n{self._head()}\r\n"
        status = await self._send(head, b"", lambda data, _: pieces.append(data))
        return status, b"".join(pieces)

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()

    def _head(self) -> str:
        return f"Host: {self._origin.authority}\r\nAccept: */*\r\n{self._headers}"

    async def _send(self, head: str, body: bytes, on_data: OnData) -> int:
        message = head.encode("latin-1") + body
        while (connection := self._take_idle()) is not None:
            try:
                return await self._exchange(connection, message, on_data)
            except ConnectionBroke:
                # The server had closed it while idle: the request was not processed, and may be sent again.
                if connection.heard_anything:
                    raise
        return await self._exchange(await self._connect(), message, on_data)

    async def _exchange(self, connection: _Connection, message: bytes, on_data: OnData) -> int:
        try:
            status = await connection.request(message, on_data)
        except BaseException:
            connection.close()
            raise
        if connection.is_open:
            self._idle.append(connection)
        return status

    def _take_idle(self) -> _Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open:
                return connection
        return None

    async def _connect(self) -> _Connection:
        host, port, loop = self._origin.host, self._origin.port, asyncio.get_running_loop()
        try:
            _, connection = await loop.create_connection(
                lambda: _Connection(self._clock), host, port, ssl=self._security
            )
        except OSError as error:
            raise ConnectionBroke(f"{self._origin.url} cannot be reached ({error})") from error
        return connection
