"""An engine without a model whose first step with company raises, and that goes well when it is started again."""

import os
from pathlib import Path
from typing import Any

from archerfish.execution.scripted import ScriptedStep
from archerfish.scheduling.plan import Plan
from tests.server import scripted_engine


class FailingOnce(scripted_engine.GatedExecutor):
    """A file says whether it has failed before."""

    def launch(self, plan: Plan) -> ScriptedStep:
        failed = Path(os.environ["ARCHERFISH_TEST_FAILED"])
        if not failed.exists() and len(plan.chunks) > 1:
            failed.touch()
            raise RuntimeError("illegal memory access")
        return super().launch(plan)


def build(config: Any, on_progress: Any) -> Any:
    scripted_engine.GatedExecutor = FailingOnce  # type: ignore[misc]
    return scripted_engine.build(config, on_progress)
