"""The data directory is its owner's alone, and one that cannot be used is refused by name before anything is served."""

import logging
import os
import shutil
import sqlite3
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from archerfish.errors import ConfigError
from archerfish.jobs import database
from archerfish.jobs.store import JobStore
from tests.jobs.working import echo, lines, new_batch, run_all, upload

pytestmark = pytest.mark.skipif(os.name != "posix", reason="there are no such modes")

OTHER_USER = 65534


def modes(directory: Path) -> dict[str, int]:
    """Of the directory and all in it."""
    found = [directory, *directory.rglob("*")]
    return {str(path.relative_to(directory)): stat.S_IMODE(path.stat().st_mode) for path in found}


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


@contextmanager
def as_other_user() -> Iterator[None]:
    """As a user that may not do everything."""
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    os.seteuid(OTHER_USER)
    try:
        yield
    finally:
        os.seteuid(0)


def let_through(directory: Path) -> None:
    """Other users can reach the directory, however deep pytest has put it."""
    for path in (directory, *directory.parents):
        if path.stat().st_uid == os.geteuid() and path.is_relative_to(tempfile.gettempdir()):
            path.chmod(path.stat().st_mode | 0o055)


def check_closed(directory: Path) -> None:
    for name, mode in modes(directory).items():
        assert mode == (0o700 if (directory / name).is_dir() else 0o600), name


def test_nothing_can_be_read_by_others(tmp_path: Path) -> None:
    with umask(0), JobStore(tmp_path / "jobs") as store:
        new_batch(store, lines(3))
        run_all(store, echo)
        with store.files.begin_upload() as going_on:
            going_on.write(b"half")
            found = modes(store.directory)
            assert {"jobs.sqlite", "jobs.sqlite-wal", "jobs.sqlite-shm", "runner.lock"} <= set(found)
            assert len([name for name in found if name.startswith(("files/", "drafts/"))]) == 3
            check_closed(store.directory)


def test_what_was_open_is_closed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with JobStore(tmp_path) as store:
        upload(store, b"secret")
        for path in (tmp_path, tmp_path / "files", tmp_path / "drafts"):
            path.chmod(0o755)
        for name in ("jobs.sqlite", "jobs.sqlite-wal", "jobs.sqlite-shm"):
            (tmp_path / name).chmod(0o644)
        with caplog.at_level(logging.INFO, "archerfish"), JobStore(tmp_path):
            check_closed(tmp_path)
    assert f"closed {tmp_path} to other users: its mode was 755" in caplog.text


def test_a_directory_with_other_things_in_it_is_left_open_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tmp_path.chmod(0o777)
    (tmp_path / "other").write_text("another's")
    JobStore(tmp_path).close()
    assert modes(tmp_path)["."] == 0o777 and modes(tmp_path)["files"] == 0o700
    [warning] = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert f"other users can look into {tmp_path}, which also holds other" in warning.getMessage()


def test_a_directory_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    directory = tmp_path / "jobs"
    JobStore(directory).close()
    let_through(tmp_path)
    for path in (directory, *directory.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    for place in (directory, directory / "deeper", tmp_path / "new"):
        with as_other_user(), pytest.raises(ConfigError) as refusal:
            JobStore(place)
        assert str(place) in str(refusal.value) and "\n" not in str(refusal.value)


def test_a_database_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    JobStore(tmp_path).close()
    let_through(tmp_path)
    tmp_path.chmod(0o777)
    (tmp_path / "jobs.sqlite").chmod(0o444)
    for folder in ("files", "drafts"):
        (tmp_path / folder).chmod(0o777)
    with as_other_user(), pytest.raises(ConfigError, match=r"jobs\.sqlite cannot be used .*readonly"):
        JobStore(tmp_path)


# -- damage -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a database of many pages, all of them in the file itself."""
    directory = tmp_path_factory.mktemp("filled")
    with JobStore(directory) as store:
        for number in range(300):
            store.files.upload(f"{'name' * 50}{number}", "batch", [b"x"])
    connection = sqlite3.connect(directory / "jobs.sqlite")
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    return directory


@pytest.fixture
def jobs(filled: Path, tmp_path: Path) -> Path:
    """A copy of it, to be damaged."""
    return shutil.copytree(filled, tmp_path / "jobs")


@pytest.mark.parametrize("page", [2, 5, 10, -1])
def test_damaged_pages_are_named_at_the_start(jobs: Path, page: int) -> None:
    path = jobs / "jobs.sqlite"
    content = bytearray(path.read_bytes())
    start = page * 4096 if page > 0 else len(content) - 4096
    content[start : start + 4096] = b"\xa5" * 4096
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"jobs\.sqlite is damaged .*: put a backup in its place") as refusal:
        JobStore(jobs)
    assert "\n" not in str(refusal.value)


def test_a_database_that_was_cut_off_is_refused(jobs: Path) -> None:
    path = jobs / "jobs.sqlite"
    os.truncate(path, path.stat().st_size // 2)
    with pytest.raises(ConfigError, match=r"jobs\.sqlite"):
        JobStore(jobs)


def test_looking_for_damage_ends_in_time(
    jobs: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(database, "_CHECK_SECONDS", -1.0)
    monkeypatch.setattr(database, "_INSTRUCTIONS_BETWEEN_LOOKS", 1)
    with caplog.at_level(logging.INFO, "archerfish"), JobStore(jobs) as store:
        assert len(store.files.page().items) == 300, "what was looked at was good, and it serves"
    assert "only part of it" in caplog.text
