"""An engine process that hangs, cannot start or does not exit is noticed at any time of its life, and replaced."""

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from archerfish.config.settings import EngineConfig
from archerfish.engine.async_engine import AsyncEngine, EngineStatus
from archerfish.engine.wire import Ending
from tests.server import scripted_engine

SCRIPTED = "tests.server.scripted_engine:build"
HANGS_ONCE = f"{__name__}:build_that_hangs_once"
HANGS_AT_ITS_END = f"{__name__}:build_that_hangs_at_its_end"
HUNG = "ARCHERFISH_TEST_HUNG"


def build_that_hangs_once(config: Any, on_progress: Any) -> Any:
    """Stop this process while it loads, as if a driver or a disk did not answer; not the second time."""
    hung = Path(os.environ[HUNG])
    if not hung.exists():
        hung.touch()
        os.kill(os.getpid(), signal.SIGSTOP)
    return scripted_engine.build(config, on_progress)


def build_that_hangs_at_its_end(config: Any, on_progress: Any) -> Any:
    """Fail at the first step, and then never exit; not the second time."""
    hung = Path(os.environ[HUNG])
    assembly = scripted_engine.build(config, on_progress)
    if not hung.exists():
        hung.touch()

        def fail_and_hang(self: Any) -> None:
            self._channel.send(Ending("illegal memory access", can_be_fixed=False))
            threading.Event().wait()

        sys.modules["__main__"].EngineLoop.run = fail_and_hang  # The module that the process runs.
    return assembly


def run(story: Callable[[AsyncEngine], Awaitable[None]], builder: str, stall_timeout: float) -> None:
    async def main() -> None:
        engine = AsyncEngine(EngineConfig(), builder=builder, stall_timeout=stall_timeout)
        await engine.start()
        try:
            async with asyncio.timeout(50):
                await story(engine)
        finally:
            await engine.stop()

    asyncio.run(main())


@pytest.mark.parametrize(("builder", "stall_timeout"), [(HANGS_ONCE, 0.2), (HANGS_AT_ITS_END, 1.0)])
def test_a_process_that_hangs_is_replaced(
    builder: str, stall_timeout: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(HUNG, str(tmp_path / "hung"))

    async def story(engine: AsyncEngine) -> None:
        while engine.num_restarts == 0:
            engine._changed.clear()
            await engine._changed.wait()
        await engine.wait_ready()
        assert engine.status is EngineStatus.READY and engine.num_restarts == 1

    run(story, builder, stall_timeout)


def test_a_process_that_cannot_be_started_ends_the_service_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    async def no_process(*_: Any, **__: Any) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(asyncio, "create_subprocess_exec", no_process)

    async def story(engine: AsyncEngine) -> None:
        ending = await engine.wait_ended()
        assert ending is not None and "Too many open files" in ending.reason and not ending.can_be_fixed

    run(story, SCRIPTED, 30.0)


def test_a_mistake_in_the_supervision_ends_the_service_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*_: Any, **__: Any) -> int:
        raise KeyError("slot")

    monkeypatch.setattr(AsyncEngine, "_run_once", broken)

    async def story(engine: AsyncEngine) -> None:
        ending = await engine.wait_ended()
        assert ending is not None and "supervised" in ending.reason

    run(story, SCRIPTED, 30.0)
