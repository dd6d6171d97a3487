"""How much memory a process has, and had at most."""

from pathlib import Path

import pytest


def resident(pid: int) -> int:
    """Bytes that a process has in memory now; 0 if it is gone."""
    return _status(pid, "VmRSS")


def forget_peak(pid: int) -> None:
    """From now on `peak` starts again from what it has."""
    try:
        Path(f"/proc/{pid}/clear_refs").write_text("5")
    except OSError:
        pytest.skip("this system does not let peaks of memory be reset")


def peak(pid: int) -> int:
    """The most bytes that a process had in memory since `forget_peak`; 0 if it is gone."""
    return _status(pid, "VmHWM")


def _status(pid: int, name: str) -> int:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith(f"{name}:")), 0)
