"""What goes wrong: engines that die, clients that leave, bodies that are no requests, a stop in between."""

import asyncio
import contextlib
import json
import os
import random
import signal
import socket
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.server.running import RunningService, running_service

LONG: dict[str, Any] = {"prompt": "Once upon a time", "max_tokens": 400, "ignore_eos": True, "stream": True}


@pytest.fixture(scope="module")
def shaky() -> Iterator[RunningService]:
    """A service that may be hurt."""
    with running_service("--max-num-seqs", "32", "--body-timeout", "2") as running:
        yield running


def gauge(service: RunningService, name: str) -> float:
    text = httpx.get(f"{service.url}/metrics").text
    return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith(f"archerfish:{name}{{"))


def wait_until_idle(service: RunningService) -> None:
    end = time.monotonic() + 30
    while gauge(service, "num_requests_running") or gauge(service, "num_requests_waiting"):
        assert time.monotonic() < end, "requests of clients that left are still running"
    assert gauge(service, "kv_cache_usage_perc") == 0


async def events_of(client: httpx.AsyncClient, body: dict[str, Any], first: asyncio.Event | None = None) -> list[str]:
    found = []
    async with client.stream("POST", "/v1/completions", json=body) as response:
        assert response.status_code == 200, await response.aread()
        async for line in response.aiter_lines():
            if line.startswith("data: "):
                found.append(line.removeprefix("data: "))
                if first is not None:
                    first.set()
    return found


def test_when_the_engine_is_killed_every_stream_is_told_and_the_next_engine_serves(shaky: RunningService) -> None:
    async def run() -> list[list[str]]:
        async with httpx.AsyncClient(base_url=shaky.url, timeout=60) as client:
            started = [asyncio.Event() for _ in range(32)]
            streams = [asyncio.create_task(events_of(client, LONG, first)) for first in started]
            await asyncio.gather(*(first.wait() for first in started))
            os.kill(shaky.engine, signal.SIGKILL)
            return await asyncio.gather(*streams)

    for stream in asyncio.run(run()):
        assert json.loads(stream[-1])["error"]["message"] == "the engine process ended with SIGKILL"
    shaky.wait_ready()
    reply = httpx.post(f"{shaky.url}/v1/completions", json={"prompt": "Once", "max_tokens": 4}, timeout=60)
    assert reply.status_code == 200
    assert httpx.get(f"{shaky.url}/health").json()["engine_restarts"] == 1


def test_clients_that_leave_free_everything(shaky: RunningService) -> None:
    rng = random.Random(0)

    async def visit(client: httpx.AsyncClient, num_lines: int, streamed: bool) -> None:
        body = {**LONG, "stream": streamed, "prompt": f"{rng.random()} fish"}
        if not streamed:
            with pytest.raises(httpx.ReadTimeout):
                await client.post("/v1/completions", json=body, timeout=httpx.Timeout(60, read=0.2 + rng.random() / 10))
            return
        async with client.stream("POST", "/v1/completions", json=body) as response:
            async for _ in response.aiter_lines():
                num_lines -= 1
                if num_lines <= 0:
                    return

    async def run() -> None:
        async with httpx.AsyncClient(
            base_url=shaky.url, timeout=60, limits=httpx.Limits(max_connections=200)
        ) as client:
            await asyncio.gather(*(visit(client, rng.randrange(40), rng.random() < 0.8) for _ in range(200)))

    asyncio.run(run())
    wait_until_idle(shaky)


def test_a_reader_that_stops_reading_holds_up_nobody(shaky: RunningService) -> None:
    async def run() -> None:
        host, port = shaky.url.removeprefix("http://").split(":")
        body = json.dumps({**LONG, "max_tokens": 900, "logprobs": 5}).encode()
        head = (
            f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
        )
        _, writer = await asyncio.open_connection(host, int(port), limit=1024)
        writer.write(head.encode() + b"\r\n\r\n" + body)
        await writer.drain()
        async with httpx.AsyncClient(base_url=shaky.url, timeout=60) as client:
            events = await events_of(client, {**LONG, "max_tokens": 100})
            assert events[-1] == "[DONE]"
        writer.close()

    asyncio.run(run())
    wait_until_idle(shaky)


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        (b"", 400, ""),
        (b"{", 400, "not valid JSON"),
        (b"\xff\xfe", 400, "not valid JSON"),
        (b"[1, 2]", 400, ""),
        (b'{"prompt": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", 400, "more than 64 levels deep"),
        (b'{"prompt": "a", "prompt_": NaN}', 400, ""),
        (b'{"prompt": "' + b"a" * 34_000_000 + b'"}', 413, "larger than"),
    ],
)
def test_bodies_that_are_no_requests(shaky: RunningService, body: bytes, status: int, said: str) -> None:
    headers = {"Content-Type": "application/json"}
    reply = httpx.post(f"{shaky.url}/v1/completions", content=body, headers=headers, timeout=60)
    assert reply.status_code == status, reply.text
    assert said in reply.json()["error"]["message"]


@pytest.mark.parametrize(
    "head",
    [
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-Long: " + b"a" * 100_000 + b"\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + b"X-One: two\r\n" * 10_000 + b"\r\n",
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ],
)
def test_headers_have_a_limit(shaky: RunningService, head: bytes) -> None:
    async def run() -> None:
        host, port = shaky.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(head)
        reply = await asyncio.wait_for(reader.read(), 10)
        assert reply.startswith(b"HTTP/1.1 431 ") and b"headers exceed 65,536 bytes" in reply
        writer.close()

    asyncio.run(run())


def test_headers_without_end_are_cut_off(shaky: RunningService) -> None:
    host, port = shaky.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection, contextlib.suppress(ConnectionError):
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-Endless: ")
        for _ in range(1000):
            connection.sendall(b"a" * 100_000)
        pytest.fail("a hundred megabytes of one header were taken")


def test_long_headers_within_the_limit_are_read(shaky: RunningService) -> None:
    with httpx.Client(base_url=shaky.url) as client:
        for _ in range(3):  # On one connection: each request has the whole limit.
            assert client.get("/health", headers={"Cookie": "a" * 40_000}).status_code == 200


def test_a_sender_that_dawdles_is_refused(shaky: RunningService) -> None:
    async def run() -> None:
        host, port = shaky.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        head = b"Host: localhost\r\nContent-Type: application/json\r\nContent-Length: 10"
        writer.write(b"POST /v1/completions HTTP/1.1\r\n" + head + b"\r\n\r\n{")
        assert b" 408 " in await asyncio.wait_for(reader.readline(), 10)
        silent, _ = await asyncio.open_connection(host, int(port))
        assert await asyncio.wait_for(silent.read(), 10) == b"", "a connection without headers is closed"
        writer.close()

    asyncio.run(run())


def test_a_stop_lets_requests_finish_and_says_so_meanwhile() -> None:
    with running_service("--max-num-seqs", "4") as service:

        async def run() -> None:
            async with httpx.AsyncClient(base_url=service.url, timeout=60) as client:
                first = asyncio.Event()
                stream = asyncio.create_task(events_of(client, {**LONG, "max_tokens": 600}, first))
                await first.wait()
                service.process.send_signal(signal.SIGTERM)
                await asyncio.to_thread(service.wait_for_line, "stopping")
                ready = await client.get("/health/ready")
                assert (ready.status_code, ready.json()["status"]) == (503, "draining")
                refused = await client.post("/v1/completions", json={"prompt": "a"})
                assert refused.status_code == 503 and "Retry-After" in refused.headers
                events = await stream
                assert events[-1] == "[DONE]" and json.loads(events[-2])["choices"][0]["finish_reason"] == "length"

        asyncio.run(run())
        assert service.process.wait(30) == 0


@pytest.mark.full
def test_an_engine_that_keeps_dying_ends_the_service_with_a_reason() -> None:
    with running_service("--max-num-seqs", "4") as service:
        for _ in range(3):
            service.wait_ready()
            os.kill(service.engine, signal.SIGKILL)
            wait_for_death(service)
        assert service.process.wait(30) == 1
        service.wait_for_line("error: the engine died 3 times in 60 seconds, the last time because .* SIGKILL")


def test_a_model_that_cannot_be_loaded_ends_the_service_at_once() -> None:
    said = r"(?s)ended with 2:.*error: there is no directory no/such/model"
    with pytest.raises(AssertionError, match=said), running_service("--model", "no/such/model/at/all"):
        pass


def wait_for_death(service: RunningService) -> None:
    """Until the service has noticed."""
    end = time.monotonic() + 30
    while time.monotonic() < end and service.process.poll() is None:
        try:
            if httpx.get(f"{service.url}/health/ready").status_code != 200:
                return
        except httpx.TransportError:
            return
