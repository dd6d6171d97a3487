"""Shared by all tests: no network, one thread a process, quiet libraries, a box of one's own."""

import os
from pathlib import Path
from typing import Any

import pytest

from tests import lanes

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
# Without a GPU, Triton's kernels are run by its interpreter, which must be selected before the import.
os.environ.setdefault("TRITON_INTERPRET", "0" if Path("/proc/driver/nvidia").exists() else "1")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--lane",
        choices=lanes.LANES,
        default="quick",
        help="quick (the default), full (what quick leaves out, and more examples of each property), or all",
    )


def pytest_configure(config: pytest.Config) -> None:
    lanes.load_profile(config.getoption("lane"))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the tests of the lane. Tests that are named one by one run in any lane."""
    if any("::" in argument for argument in config.args):
        return
    lane = config.getoption("lane")
    selected = lanes.select(items, lane)
    if lane == "quick" and (files := lanes.left_out(items, selected)):
        raise pytest.UsageError(f"no test in the quick lane: {', '.join(files)}")
    config.hook.pytest_deselected(items=[item for item, chosen in zip(items, selected, strict=True) if not chosen])
    items[:] = [item for item, chosen in zip(items, selected, strict=True) if chosen]


@pytest.fixture(scope="session", autouse=True)
def exact_dots() -> None:
    """Make dots of Triton's interpreter independent of the shape of their tiles, as tensor cores are.

    It calls numpy, whose library sums in an order that depends on the shape and on the CPU. Sums in float64, rounded
    once, do not.
    """
    if os.environ["TRITON_INTERPRET"] != "1":
        return
    import numpy as np
    import triton.language as tl
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    interpreted = InterpreterBuilder.create_dot

    def create_dot(self: InterpreterBuilder, a: Any, b: Any, accumulator: Any, *precision: Any) -> Any:
        if accumulator.data.dtype != np.float32:
            return interpreted(self, a, b, accumulator, *precision)
        zero = TensorHandle(np.zeros_like(accumulator.data, dtype=np.float64), tl.float64)
        dot = interpreted(self, a, b, zero, *precision).data.astype(np.float32)
        return TensorHandle(dot + accumulator.data, accumulator.dtype.scalar)

    InterpreterBuilder.create_dot = create_dot


@pytest.fixture(scope="session", autouse=True)
def language_patched_once() -> None:
    """Let Triton's interpreter put its functions into the language once for each launch and module.

    It does so again for every call from one function to another, and nothing undoes it before the launch ends.
    """
    if os.environ["TRITON_INTERPRET"] != "1":
        return
    from triton.runtime import interpreter

    patched: set[int] = set()
    patch, launch = interpreter._patch_lang, interpreter.GridExecutor.__call__

    def patch_once(function: Any) -> Any:
        module = id(function.__globals__)
        if module in patched:
            return None
        patched.add(module)
        return patch(function)

    def launch_patched(self: Any, *arguments: Any, **keywords: Any) -> Any:
        patched.clear()
        try:
            return launch(self, *arguments, **keywords)
        finally:
            patched.clear()

    interpreter._patch_lang = patch_once
    interpreter.GridExecutor.__call__ = launch_patched


@pytest.fixture
def box(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty directory in place of the package's models."""
    root = tmp_path / "box"
    root.mkdir()
    monkeypatch.setattr("archerfish.box._ROOT", root)
    return root
