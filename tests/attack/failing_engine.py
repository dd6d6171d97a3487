"""Engines without a model whose steps raise: once, when several run, or whenever a bad prompt is started."""

import os
from pathlib import Path
from typing import Any

from archerfish.execution.scripted import ScriptedStep
from archerfish.scheduling.plan import Plan
from tests.server import scripted_engine

BAD_TOKEN = 666


class FailingOnce(scripted_engine.GatedExecutor):
    """A file says whether it has failed before."""

    def launch(self, plan: Plan) -> ScriptedStep:
        failed = Path(os.environ["ARCHERFISH_TEST_FAILED"])
        if not failed.exists() and len(plan.chunks) > 1:
            failed.touch()
            raise RuntimeError("illegal memory access")
        return super().launch(plan)


class FailingWith(scripted_engine.GatedExecutor):
    """Fails with any prompt that has the bad token."""

    def launch(self, plan: Plan) -> ScriptedStep:
        if any(BAD_TOKEN in start.tokens for start in plan.starts):
            raise RuntimeError("illegal memory access")
        return super().launch(plan)


def build_failing_once(config: Any, on_progress: Any) -> Any:
    scripted_engine.GatedExecutor = FailingOnce  # type: ignore[misc]
    return scripted_engine.build(config, on_progress)


def build_failing_with(config: Any, on_progress: Any) -> Any:
    scripted_engine.GatedExecutor = FailingWith  # type: ignore[misc]
    return scripted_engine.build(config, on_progress)
