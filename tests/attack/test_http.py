"""HTTP that is wrong, slow or ambiguous: refused, and never taken for a request of its own."""

import asyncio
import json
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
ASK = json.dumps({"prompt": "Once", "max_tokens": 2, "temperature": 0}).encode()


@pytest.fixture(scope="module")
def impatient(key_file: Path) -> Iterator[RunningService]:
    options = ("--key-file", str(key_file), "--body-timeout", "2", "--keep-alive-timeout", "2")
    with running_service(*options, command=COMMAND) as running:
        yield running
        check_books_empty(running, by("alice"))


def post(body: bytes, more: bytes = b"", path: bytes = b"/v1/completions") -> bytes:
    length = b"Content-Length: %d\r\n" % len(body)
    return b"POST %b HTTP/1.1\r\n" % path + KEY + JSON + length + more + b"\r\n" + body


def ask(service: RunningService, data: bytes) -> list[int]:
    return [reply.status for reply in replies(asyncio.run(send(service.url, data)))]


def test_requests_on_one_connection_are_answered_in_their_order(impatient: RunningService) -> None:
    data = post(ASK) + b"GET /v1/models HTTP/1.1\r\n" + KEY + b"\r\n" + post(b"{") + b"GET /version HTTP/1.1\r\n"
    data += b"Host: localhost\r\nConnection: close\r\n\r\n"
    received = replies(asyncio.run(send(impatient.url, data)))
    assert [reply.status for reply in received] == [200, 200, 400, 200]
    kinds = [json.loads(reply.body) for reply in received]
    assert kinds[0]["object"] == "text_completion" and kinds[1]["object"] == "list" and "version" in kinds[3]


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 200,  # TLS, where plain HTTP is spoken.
        b"GET / HTTP/9.9\r\n\r\n",
        b"GARBAGE\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost : localhost\r\n\r\n",
        b"GET / HTTP/1.1\r\nX: a\x00b\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\n" + KEY + JSON + b"Content-Length: -1\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\n" + KEY + JSON + b"Content-Length: 1e3\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\n" + KEY + JSON + b"Content-Length: 99999999999999999999\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\n" + KEY + JSON + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\n" + KEY + JSON + b"Transfer-Encoding: chunked\r\n\r\n-2\r\n{}\r\n0\r\n\r\n",
    ],
)
def test_what_is_no_http_is_refused_and_the_connection_closed(impatient: RunningService, data: bytes) -> None:
    assert all(status == 400 for status in ask(impatient, data))


@pytest.mark.parametrize(
    "headers",
    [
        b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n",
        b"Transfer-Encoding: chunked\r\nContent-Length: 4\r\n",
        b"Content-Length: 4\r\nContent-Length: 60\r\n",
        b"Content-Length: 4, 60\r\n",
        b"Transfer-Encoding: xchunked\r\n",
        b"Transfer-Encoding: chunked, identity\r\n",
        b"Transfer-Encoding:\x0bchunked\r\n",
    ],
)
def test_no_request_is_smuggled_inside_another(impatient: RunningService, headers: bytes) -> None:
    """A proxy may read the lengths otherwise than we do: an ambiguous request is the last of its connection."""
    inner = b"GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n"
    data = b"POST /v1/completions HTTP/1.1\r\n" + KEY + JSON + headers + b"\r\n0\r\n\r\n" + inner
    received = replies(asyncio.run(send(impatient.url, data)))
    assert all(reply.status >= 400 for reply in received), received
    assert not any(b'"version"' in reply.body for reply in received)


def test_the_key_of_one_request_is_not_that_of_the_next(impatient: RunningService) -> None:
    second = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    assert ask(impatient, b"GET /v1/models HTTP/1.1\r\n" + KEY + b"\r\n" + second) == [200, 401]


@pytest.mark.parametrize(
    "path",
    [
        *(b"//v1/models", b"/v1/../v1/models", b"/%76%31/models", b"/health/../v1/models", b"/page/../v1/models"),
        *(b"/health%2f..%2fv1/models", b"/page/%2e%2e/%2e%2e/keys.py", b"http://localhost/v1/models"),
        b"/health\\..\\v1",
    ],
)
def test_no_spelling_of_a_path_gets_around_the_key(impatient: RunningService, path: bytes) -> None:
    data = b"GET " + path + b" HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    assert ask(impatient, data)[0] in (400, 401, 404)


@pytest.mark.parametrize(
    "headers",
    [
        b"".join(b"X-%d: a\r\n" % number for number in range(20_000)),
        b"X: " + b"a" * 200_000 + b"\r\n",
        b"Cookie: " + b"a=b; " * 40_000 + b"\r\n",
    ],
)
def test_too_many_headers_are_refused(impatient: RunningService, headers: bytes) -> None:
    data = b"GET /v1/models HTTP/1.1\r\n" + KEY + headers + b"\r\n"
    assert ask(impatient, data) in ([431], [])  # Nothing, where the connection was reset before it was read.
    long = b"GET /" + b"a" * 200_000 + b" HTTP/1.1\r\n" + KEY + b"\r\n"
    assert ask(impatient, long) in ([431], [])


def test_headers_without_end_are_cut_off(impatient: RunningService) -> None:
    async def attack() -> int:
        _, writer = await asyncio.open_connection(*address(impatient.url))
        writer.write(b"GET / HTTP/1.1\r\n")
        sent = 0
        try:
            while sent < 64 << 20:
                writer.write(b"X: " + b"a" * 10_000 + b"\r\n")
                await writer.drain()
                sent += 10_000
        except ConnectionError:
            pass
        finally:
            writer.close()
        return sent

    assert asyncio.run(attack()) < 32 << 20


def test_slow_senders_are_cut_off_and_others_served(impatient: RunningService) -> None:
    """Of headers and of bodies; each sends a byte now and then and would go on for ever."""
    starts = {
        "headers": b"GET / HTTP/1.1\r\nX: ",
        "body": b"POST /v1/completions HTTP/1.1\r\n" + KEY + JSON + b"Content-Length: 99999\r\n\r\n",
        "chunks": b"POST /v1/completions HTTP/1.1\r\n" + KEY + JSON + b"Transfer-Encoding: chunked\r\n\r\n",
    }

    async def trickle(start: bytes, piece: bytes) -> None:
        reader, writer = await asyncio.open_connection(*address(impatient.url))
        reading = asyncio.create_task(reader.read())
        try:
            writer.write(start)
            while not reading.done():
                writer.write(piece)
                await writer.drain()
                await asyncio.wait([reading], timeout=0.1)
        except ConnectionError:
            pass
        finally:
            reading.cancel()
            writer.close()

    async def attack() -> None:
        slow = [
            asyncio.create_task(trickle(start, b"1\r\n \r\n" if name == "chunks" else b"a"))
            for name, start in starts.items()
            for _ in range(50)
        ]
        async with httpx.AsyncClient(base_url=impatient.url, headers=by("bob"), timeout=60) as client:
            while not all(task.done() for task in slow):
                assert (await client.get("/v1/models")).status_code == 200
        await asyncio.gather(*slow)

    async def within_patience() -> None:
        async with asyncio.timeout(60):
            await attack()

    asyncio.run(within_patience())


def test_silent_connections_are_closed_and_others_served(impatient: RunningService) -> None:
    async def attack() -> None:
        opened = [await asyncio.open_connection(*address(impatient.url)) for _ in range(300)]
        async with httpx.AsyncClient(base_url=impatient.url, headers=by("bob"), timeout=60) as client:
            assert (await client.get("/v1/models")).status_code == 200
        async with asyncio.timeout(60):
            assert {await reader.read() for reader, _ in opened} == {b""}
        for _, writer in opened:
            writer.close()

    asyncio.run(attack())
