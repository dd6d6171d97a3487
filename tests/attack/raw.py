"""Bytes sent as they are: what a well-behaved client cannot send."""

import asyncio
import select
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

_PATIENCE = 30.0


class Reply(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes


def address(url: str) -> tuple[str, int]:
    host, _, port = url.removeprefix("http://").rpartition(":")
    return host, int(port)


async def send(url: str, data: bytes) -> bytes:
    """Everything that comes back before the connection is closed, by us after the patience or by the service."""
    reader, writer = await asyncio.open_connection(*address(url))
    received = bytearray()
    try:
        async with asyncio.timeout(_PATIENCE):
            writer.write(data)
            await writer.drain()
            while piece := await reader.read(65536):
                received += piece
    except (ConnectionError, TimeoutError):
        pass
    finally:
        writer.close()
    return bytes(received)


def replies(received: bytes) -> list[Reply]:
    """All replies in what was received. Each must name its length."""
    found = []
    while received:
        head, separator, received = received.partition(b"\r\n\r\n")
        assert separator, head
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        length = int(headers["content-length"])
        found.append(Reply(int(first.split()[1]), headers, received[:length]))
        received = received[length:]
    return found


@contextmanager
def silent_client(url: str, data: bytes) -> Iterator[socket.socket]:
    """A connection over which a request is sent, and nothing is ever read."""
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)  # Before it connects: it limits the window.
        connection.connect(address(url))
        connection.sendall(data)
        yield connection


def is_reset(connection: socket.socket, seconds: float) -> bool:
    """Whether the service ends a connection in so many seconds, without anything being read from it."""
    watch = select.poll()
    watch.register(connection, select.POLLRDHUP)
    return bool(watch.poll(1000 * seconds))
