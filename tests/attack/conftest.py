"""One service with two tenants and an operator, for all attacks that do not need one of their own."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.running import RunningService, running_service

KEYS = """
[[key]]
name = "alice"
key = "alice-secret"

[[key]]
name = "bob"
key = "bob-secret"
"""


def by(name: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {name}-secret"}


@pytest.fixture(scope="session")
def key_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("keys") / "keys.toml"
    file.write_text(KEYS)
    file.chmod(0o600)
    return file


@pytest.fixture(scope="session")
def service(key_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    jobs = tmp_path_factory.mktemp("jobs")
    with running_service("--key-file", str(key_file), "--data-dir", str(jobs), "--max-num-seqs", "16") as running:
        yield running
