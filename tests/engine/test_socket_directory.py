"""Directories that killed services left behind are removed by the next one; those in use and of others stay."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from archerfish.engine.socket_directory import SocketDirectory

_HOLD = """
from archerfish.engine.socket_directory import SocketDirectory
directory = SocketDirectory()
print(directory.path, flush=True)
input()
"""


@pytest.fixture
def parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


def hold() -> "tuple[subprocess.Popen[str], Path]":
    """Start a process that has a directory."""
    process = subprocess.Popen(
        [sys.executable, "-c", _HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def test_what_a_killed_service_left_is_removed_and_what_is_in_use_stays(parent: Path) -> None:
    killed, leftover = hold()
    running, used = hold()
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    assert leftover.is_dir() and leftover.parent == used.parent == parent
    directory = SocketDirectory()
    assert not leftover.exists() and used.is_dir() and directory.path.is_dir()
    running.communicate("\n")
    directory.remove()
    directory.remove()
    assert not directory.path.exists()


def test_one_that_was_killed_before_its_directory_had_a_name_leaves_nothing_for_long(parent: Path) -> None:
    unnamed = parent / ".archerfish-abc"
    unnamed.mkdir()
    young = parent / ".archerfish-def"
    young.mkdir()
    os.utime(unnamed, (0, 0))
    SocketDirectory().remove()
    assert not unnamed.exists()
    assert young.is_dir(), "another service may be making it at this moment"


def test_directories_that_are_no_leftovers_stay(parent: Path) -> None:
    (parent / "elsewhere").mkdir()
    (parent / "archerfish-link").symlink_to(parent / "elsewhere")
    (parent / "archerfish-without-lock").mkdir()
    SocketDirectory().remove()
    assert (parent / "elsewhere").is_dir() and (parent / "archerfish-without-lock").is_dir()


def test_only_the_owner_may_look_into_it(parent: Path) -> None:
    directory = SocketDirectory()
    assert directory.path.parent == parent
    assert directory.path.stat().st_mode & 0o777 == 0o700
    directory.remove()
