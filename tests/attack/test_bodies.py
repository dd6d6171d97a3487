"""Large bodies within the limits: meanwhile other clients are served, and the service does not grow."""

import asyncio
import contextlib
from collections.abc import Iterator

import httpx
import pytest

from tests.attack.big_bodies import BIG_BODIES, COVERED
from tests.attack.books import check_books_empty
from tests.attack.conftest import by
from tests.attack.watching import LONGEST_WAIT, SMALL, TRIES, Watch, watched
from tests.lanes import full
from tests.server.running import RunningService

MOST_OF_WORKER = (768 + 1) << 20
"""Bytes, what it has after loading included."""
ALLOWED = (200, 400, 404, 413)


async def send(service: RunningService, path: str, body: bytes) -> Watch:
    async def attack(alice: httpx.AsyncClient) -> None:
        reply = await alice.post(path, content=body, headers={"Content-Type": "application/json"})
        assert reply.status_code in ALLOWED

    return await watched(service, attack)


@pytest.fixture(scope="module", autouse=True)
def books(service: RunningService) -> Iterator[None]:
    yield
    check_books_empty(service, by("alice"))


@pytest.mark.parametrize("name", [*(name for name in BIG_BODIES if name not in COVERED), *full(*sorted(COVERED))])
def test_a_big_body_holds_up_no_other_client(service: RunningService, name: str) -> None:
    path, make = BIG_BODIES[name]
    body = make()
    tries = []
    for _ in range(TRIES):
        tries.append(asyncio.run(send(service, path, body)))
        assert tries[-1].most_of_worker <= MOST_OF_WORKER
        if tries[-1].is_good:
            return
    raise AssertionError(tries)


def test_unfinished_uploads_of_one_tenant_shut_out_no_other(service: RunningService) -> None:
    size = 32 << 20
    head = (
        "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nX-Api-Key: alice-secret\r\n"
        f"Content-Type: application/json\r\nContent-Length: {size}\r\n\r\n"
    )

    async def attack() -> list[int]:
        host, port = service.url.removeprefix("http://").split(":")
        writers = []
        for _ in range(8):
            _, writer = await asyncio.open_connection(host, int(port))
            writers.append(writer)
            with contextlib.suppress(ConnectionError):  # Refused: the tenant has its share already.
                writer.write(head.encode() + b" " * (size - 1))
                await writer.drain()
        async with httpx.AsyncClient(base_url=service.url, headers=by("bob"), timeout=60) as client:
            replies = [await client.post("/v1/completions", json=SMALL) for _ in range(20)]
        for writer in writers:
            writer.close()
        return [reply.status_code for reply in replies]

    assert asyncio.run(attack()) == [200] * 20


def test_what_is_wrong_is_told_in_few_words(service: RunningService) -> None:
    with httpx.Client(base_url=service.url, headers=by("alice"), timeout=60) as client:
        for body in (
            {"prompt": "a", "k" * 1_000_000: 1},
            {"prompt": "a", "model": "k" * 1_000_000},
            {"prompt": "a", "response_format": {"type": "k" * 1_000_000}},
            {"prompt": "a", "speculation": {"method": "off", "k" * 1_000_000: 1}},
        ):
            reply = client.post("/v1/completions", json=body)
            assert reply.status_code in (400, 404) and len(reply.content) < 10_000


def test_a_salt_has_a_longest_length(service: RunningService) -> None:
    body = {**SMALL, "cache_salt": "x" * 100_000}
    assert httpx.post(f"{service.url}/v1/completions", json=body, headers=by("alice"), timeout=60).status_code == 400


def test_one_body_never_fills_the_queue(service: RunningService) -> None:
    """More answers than the queue may hold are refused, and what is taken leaves others their share."""

    async def attack() -> tuple[int, list[int]]:
        async with httpx.AsyncClient(base_url=service.url, timeout=120) as client:
            body = {"prompt": ["a b c"] * 2048, "max_tokens": 1}
            big = asyncio.create_task(client.post("/v1/completions", json=body, headers=by("alice")))
            statuses = []
            while not big.done() and len(statuses) < 50:
                reply = await client.post("/v1/completions", json=SMALL, headers=by("bob"))
                statuses.append(reply.status_code)
            big.cancel()
            many = {"prompt": ["a"] * 1000, "max_tokens": 1, "n": 128}
            refused = await client.post("/v1/completions", json=many, headers=by("alice"), timeout=20)
            return refused.status_code, statuses

    refused, statuses = asyncio.run(attack())
    assert set(statuses) <= {200}
    assert refused in (400, 429)


def test_ids_that_are_named_often_count_once(service: RunningService) -> None:
    body = {"prompt": "a", "max_tokens": 30, "ignore_eos": True, "n": 8, "allowed_token_ids": [5, 6] * 100_000}

    def ask() -> Watch:
        return asyncio.run(send(service, "/v1/completions", httpx.Request("POST", "http://a", json=body).content))

    assert min(ask().longest_wait for _ in range(TRIES)) <= LONGEST_WAIT
