"""Shared by all tests: no network, one thread a process, quiet libraries, a box of one's own."""

import os
from pathlib import Path

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
# Without a GPU, Triton's kernels are run by its interpreter. It has to be told before it is imported.
os.environ.setdefault("TRITON_INTERPRET", "0" if Path("/proc/driver/nvidia").exists() else "1")


@pytest.fixture
def box(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty directory in place of the package's models."""
    root = tmp_path / "box"
    root.mkdir()
    monkeypatch.setattr("archerfish.box._ROOT", root)
    return root
