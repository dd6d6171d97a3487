"""Connections whose clients send too much at once, too slowly, or read nothing: ended, and nothing is left of them."""

import asyncio
import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.attack.books import check_books_empty
from tests.attack.conftest import by
from tests.attack.raw import address, replies, send
from tests.server.running import RunningService, running_service
from tests.server.scripted_process import COMMAND

KEY = b"Host: localhost\r\nX-Api-Key: alice-secret\r\n"
JSON = b"Content-Type: application/json\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n"
TIMEOUT = 2.0
PATIENCE = 15.0
"""Seconds in which a connection that is too slow must have been ended."""


@pytest.fixture(scope="module")
def strict(key_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    """A service without a model that waits for nobody longer than TIMEOUT."""
    seconds = str(TIMEOUT)
    options = ("--key-file", str(key_file), "--body-timeout", seconds, "--keep-alive-timeout", seconds)
    jobs = ("--data-dir", str(tmp_path_factory.mktemp("jobs")))
    with running_service(*options, *jobs, command=COMMAND) as running:
        yield running
        check_books_empty(running, by("alice"))


def post(body: bytes, more: bytes = b"") -> bytes:
    length = b"Content-Length: %d\r\n" % len(body)
    return b"POST /v1/completions HTTP/1.1\r\n" + KEY + JSON + length + more + b"\r\n" + body


async def flood(service: RunningService, start: bytes, piece: bytes, most: int = 8 << 20) -> int:
    """Bytes that a connection takes after its start before it is ended, out of so many."""
    _, writer = await asyncio.open_connection(*address(service.url))
    sent = 0
    try:
        async with asyncio.timeout(PATIENCE):
            writer.write(start)
            while sent < most:
                writer.write(piece)
                await writer.drain()
                sent += len(piece)
    except (ConnectionError, TimeoutError):
        pass
    finally:
        writer.close()
    return sent


# -- requests that wait for one another -------------------------------------------------------------------------------


def test_requests_sent_ahead_are_bounded(strict: RunningService) -> None:
    """They need no key, so they must cost nothing."""
    request = b"GET /version HTTP/1.1\r\nA: bc\r\n\r\n"
    assert 2**18 % len(request) == 0, "so many bytes are read at a time, and none of them may end within a request"

    async def attack() -> int:
        reader, writer = await asyncio.open_connection(*address(strict.url))
        num_replies = 0
        with contextlib.suppress(ConnectionError):
            async with asyncio.timeout(PATIENCE):
                for _ in range(20):
                    writer.write(1000 * request)
                    await writer.drain()
                    await asyncio.sleep(0.01)
                while received := await reader.read(65536):
                    num_replies += received.count(b"HTTP/1.1 200 OK")
        writer.close()
        return num_replies

    assert asyncio.run(attack()) <= 32


def test_what_was_sent_ahead_within_the_bound_is_answered_before_the_connection_ends(strict: RunningService) -> None:
    for number in (1, 5, 17):
        data = number * (b"GET /version HTTP/1.1\r\n" + KEY + b"\r\n")
        for rest in (b"", b"GARBAGE\r\n\r\n", 30 * b"GET /version HTTP/1.1\r\n\r\n", b"GET /" + 200_000 * b"a"):
            received = replies(asyncio.run(send(strict.url, data + rest)))
            assert [reply.status for reply in received[:number]] == [200] * number, rest[:20]
            assert len(received) <= 18


def test_a_client_that_leaves_while_its_next_request_waits_frees_both(strict: RunningService) -> None:
    body = {"prompt": "a", "max_tokens": 500, "ignore_eos": True, "stream": True, "n": 8}
    live = b"GET /live HTTP/1.1\r\n" + KEY + b"X-Request-Id: left-live\r\n\r\n"

    async def attack() -> None:
        for first in (live, post(json.dumps(body).encode(), b"X-Request-Id: left-stream\r\n")):
            reader, writer = await asyncio.open_connection(*address(strict.url))
            writer.write(first)
            await reader.readuntil(b"data: ")
            writer.write(b"GET /version HTTP/1.1\r\n" + KEY + b"\r\n")
            await writer.drain()
            await asyncio.sleep(0.2)
            writer.transport.abort()

    asyncio.run(attack())
    for name in ("live", "stream"):
        strict.wait_for_line(f"id=left-{name}")
    assert not any("Traceback" in line for line in strict.lines)
    check_books_empty(strict, by("alice"))


# -- what is left of a body ------------------------------------------------------------------------------------------

ENDLESS = {
    "trailers": (b"0\r\n", b"X-Trailer: " + b"a" * 10_000 + b"\r\n"),
    "one trailer": (b"0\r\nX-Trailer: ", b"a" * 10_000),
    "an extension": (b"1;", b"a" * 10_000),
}


@pytest.mark.parametrize("part", ENDLESS)
@pytest.mark.parametrize("target", [b"GET /live", b"GET /version", b"POST /v1/completions"])
def test_chunked_bodies_have_no_way_around_the_limit_of_headers(
    strict: RunningService, target: bytes, part: str
) -> None:
    start, piece = ENDLESS[part]
    head = target + b" HTTP/1.1\r\n" + KEY + JSON + CHUNKED + b"\r\n"
    # What the kernel takes before the reset arrives is not the service's.
    assert asyncio.run(flood(strict, head + start, piece, most=32 << 20)) < 16 << 20


def test_a_trailer_is_no_header(strict: RunningService) -> None:
    body = json.dumps({"prompt": "a", "max_tokens": 1}).encode()
    chunks = b"%x\r\n%b\r\n0\r\n" % (len(body), body)
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n" + JSON + CHUNKED
    [refused] = replies(asyncio.run(send(strict.url, head + b"\r\n" + chunks + b"X-Api-Key: alice-secret\r\n\r\n")))
    assert refused.status == 401
    [taken] = replies(asyncio.run(send(strict.url, head + KEY + b"\r\n" + chunks + b"X-Checksum: 1\r\n\r\n")))
    assert taken.status == 200


@pytest.mark.parametrize("rest", [CHUNKED + b"\r\n", b"Content-Length: 9999999999\r\n\r\n"])
def test_a_body_that_nobody_reads_has_a_limit_of_time(strict: RunningService, rest: bytes) -> None:
    async def attack() -> float:
        reader, writer = await asyncio.open_connection(*address(strict.url))
        started = time.monotonic()
        writer.write(b"GET /live HTTP/1.1\r\n" + KEY + rest)
        with contextlib.suppress(ConnectionError):
            async with asyncio.timeout(PATIENCE):
                while await reader.read(65536):
                    writer.write(b"1\r\na\r\n")
                    await writer.drain()
        writer.close()
        return time.monotonic() - started

    assert asyncio.run(attack()) >= TIMEOUT


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/messages", "/v1/batches", "/tokenize"])
def test_a_client_that_leaves_within_its_body_is_no_error_of_the_service(strict: RunningService, path: str) -> None:
    async def attack() -> None:
        _, writer = await asyncio.open_connection(*address(strict.url))
        mark = f"X-Request-Id: left{path.replace('/', '-')}\r\n".encode()
        writer.write(b"POST %b HTTP/1.1\r\n" % path.encode() + KEY + JSON + mark + b'Content-Length: 99\r\n\r\n{"mod')
        await writer.drain()
        await asyncio.sleep(0.2)
        writer.close()

    asyncio.run(attack())
    line = strict.wait_for_line(f"id=left{path.replace('/', '-')}")
    assert f"POST {path} 499 " in line.string
    assert not any("Traceback" in line for line in strict.lines)
    metrics = httpx.get(f"{strict.url}/metrics", headers=by("alice")).text
    assert 'status="499"' in metrics and 'status="500"' not in metrics
