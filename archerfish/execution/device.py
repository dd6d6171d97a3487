"""The executor of a GPU: steps are launched ahead, and their tokens read later, where sampling needs nothing of the
host."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from archerfish.execution.backends.cuda.device_rows import DeviceRows
from archerfish.execution.backends.cuda.graphs import CapturedModel
from archerfish.execution.executor import FinishedStep
from archerfish.execution.host_steps import PlainStep, SpeculativeStep
from archerfish.execution.step.inputs import StepBatch
from archerfish.execution.step_state import StepState
from archerfish.sampling.sampler import why_no_token
from archerfish.scheduling.plan import Plan, StepResult
from archerfish.speculation.controller import SpeculationController


class DeviceExecutor:
    """Has up to two steps in flight. Steps that the host takes part in are computed when they are launched."""

    max_in_flight = 2

    def __init__(
        self,
        model: CapturedModel,
        state: StepState,
        rows: DeviceRows,
        controller: SpeculationController | None = None,
    ) -> None:
        """`rows` are those of the state."""
        self.state = state
        self._model = model
        self._rows = rows
        self._plain = PlainStep(model, state)
        self.speculation = None if controller is None else SpeculativeStep(self._plain, state, controller)
        """How steps with drafts are run; None without speculation."""
        self._last: _DeviceStep | None = None

    @property
    def max_draft_tokens(self) -> int | None:
        return None if self.speculation is None else self.speculation.controller.max_draft_tokens

    @torch.inference_mode()
    def launch(self, plan: Plan) -> "_DeviceStep | FinishedStep":
        speculation = self.speculation
        self.state.apply(plan)
        if speculation is not None:
            if plan.max_draft_tokens:
                self._wait_for_rows()
            speculation.begin(plan)
        if not plan.chunks:
            return FinishedStep(StepResult([]))
        if speculation is not None and (plan.max_draft_tokens or self.state.features is not None):
            self._wait_for_rows()
            return FinishedStep(speculation.run(plan))
        batch = StepBatch.of(plan.chunks)
        draw_rows = self.state.draw_rows(plan, batch)
        if draw_rows is None:
            self._wait_for_rows()
            result = self._plain.run(plan, batch)
            if speculation is not None:
                speculation.end(plan, result)
            return FinishedStep(result)
        results = self._model.draw(batch, draw_rows)
        self._last = _DeviceStep(plan, batch, self._rows, speculation, *_to_host(results))
        return self._last

    def close(self) -> None:
        self._model.close()
        del self._model, self._plain, self.speculation, self.state

    def _wait_for_rows(self) -> None:
        """Wait until the rows have what the device sampled: the host is about to read them."""
        if self._last is not None:
            self._last.result()


@dataclass(slots=True, eq=False)
class _DeviceStep:
    """A step in flight."""

    plan: Plan
    batch: StepBatch
    rows: DeviceRows
    speculation: SpeculativeStep | None
    results: Tensor
    """[2, samples or more] int32 in main memory, once the step is done: tokens, and the bits of their maxima."""
    is_done: Any
    outcome: StepResult | None = None

    def result(self) -> StepResult:
        if self.outcome is None:
            if self.is_done is not None:
                self.is_done.synchronize()
            self.outcome = self._read()
        return self.outcome

    def _read(self) -> StepResult:
        batch, sampled_chunks = self.batch, self.batch.sampled_chunks
        drawn, bits = self.results.numpy()[:, : len(sampled_chunks)]
        sampled = drawn.tolist()
        self.rows.record_device_tokens(batch.rows[sampled_chunks], batch.sample_positions, sampled)
        tokens: list[list[int]] = [[] for _ in batch.chunks]
        for index, token in zip(sampled_chunks.tolist(), sampled, strict=True):
            tokens[index] = [token]
        peaks = np.ascontiguousarray(bits).view(np.float32)
        failures = {
            int(sampled_chunks[sample]): why_no_token(float(peaks[sample]))
            for sample in np.flatnonzero(~np.isfinite(peaks))
        }
        result = StepResult(tokens, failures=failures)
        if self.speculation is not None:
            self.speculation.end(self.plan, result)
        return result


def _to_host(results: Tensor) -> tuple[Tensor, Any]:
    """Start a copy to main memory, and return it with the event of its end; None where it is there already."""
    if results.device.type == "cpu":
        return results.clone(), None
    landed = torch.empty(results.shape, dtype=results.dtype, pin_memory=True)
    landed.copy_(results, non_blocking=True)
    is_done: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
    is_done.record()
    return landed, is_done
