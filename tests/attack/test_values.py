"""Bodies that are nearly valid: each gets an answer or a refusal that names the field, and leaves nothing open."""

import asyncio
import itertools
import signal
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import httpx
import pytest

from tests.attack.books import check_books_empty
from tests.attack.conftest import by
from tests.attack.hostile import HOSTILE_VALUES, VALID, HostileBody, each_field_with_each_value, hostile_bodies
from tests.server.running import RunningService, running_service

NUM_FUZZED = 1000
NUM_AT_ONCE = 8
EVERY = 7
"""One in so many of all fields with all values: coprime to the number of values, so that each value has its turns."""
MEANT = {500: (), 503: ("overloaded", "not_ready"), 507: ()}
"""Codes of errors that a service in order may give."""


@pytest.fixture(scope="module")
def short_service(key_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    """Its context is short, so that no answer is long, whatever length a body asks for."""
    options = ("--key-file", str(key_file), "--data-dir", str(tmp_path_factory.mktemp("jobs")))
    with running_service(*options, "--max-num-seqs", "32", "--max-model-len", "64") as running:
        yield running


def play(service: RunningService, bodies: Iterable[HostileBody]) -> Counter[int]:
    """Send all of them; the statuses. Any answer that a service in order would not give fails."""
    statuses: Counter[int] = Counter()
    waiting = iter(bodies)

    async def send(client: httpx.AsyncClient) -> None:
        for body in waiting:
            headers = {**by("alice"), "Content-Type": "application/json"}
            reply = await client.post(body.path, content=body.content, headers=headers)
            statuses[reply.status_code] += 1
            if reply.status_code >= 500:
                told = reply.json()["error"]
                assert told.get("code") in MEANT.get(reply.status_code, ()), (body.path, body.content[:3000], told)
            if reply.status_code == 400:
                assert reply.json()["error"]["message"]

    async def send_all() -> None:
        async with httpx.AsyncClient(base_url=service.url, timeout=60) as client:
            await asyncio.gather(*(send(client) for _ in range(NUM_AT_ONCE)))

    asyncio.run(send_all())
    return statuses


def test_valid_bodies_are_answered(short_service: RunningService) -> None:
    """Else what follows would test nothing but the first check that a body meets."""
    with httpx.Client(base_url=short_service.url, headers=by("alice"), timeout=60) as client:
        for path, body in VALID:
            reply = client.post(path, json=body)
            # Two of them name what is not there.
            expected = 400 if "file-no" in str(body) or "resp_no" in str(body) else 200
            assert reply.status_code == expected, (path, body, reply.text)


def test_fuzzed_bodies_break_nothing_and_leave_nothing_open(short_service: RunningService) -> None:
    statuses = play(short_service, hostile_bodies(seed=1, count=NUM_FUZZED))
    assert sum(statuses.values()) == NUM_FUZZED
    assert statuses[200] > NUM_FUZZED / 20 and statuses[400] > NUM_FUZZED / 4, statuses
    check_books_empty(short_service, by("alice"))


def test_no_field_takes_a_hostile_value_to_the_engine(short_service: RunningService) -> None:
    assert len(HOSTILE_VALUES) % EVERY
    play(short_service, itertools.islice(each_field_with_each_value(), 0, None, EVERY))
    check_books_empty(short_service, by("alice"))


def test_after_all_of_it_the_service_stops_at_once(short_service: RunningService) -> None:
    """A request that had leaked would be waited for."""
    assert short_service.stop(signal.SIGTERM) == 0
    short_service.wait_for_line("stopping")
    assert not [line for line in short_service.lines if "did not finish in time" in line]
