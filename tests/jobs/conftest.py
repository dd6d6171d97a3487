"""A store in a directory of its own, with a clock that stands still."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from archerfish.jobs.store import JobStore
from tests.jobs.working import Clock


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(tmp_path: Path, clock: Clock) -> Iterator[JobStore]:
    with JobStore(tmp_path / "jobs", clock) as opened:
        yield opened
