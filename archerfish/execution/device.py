"""Runs plans on a GPU: steps are launched and their tokens read later, where drawing them needs nothing of the host."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from archerfish.execution.backends.cuda.device_rows import DeviceRows
from archerfish.execution.backends.cuda.graphs import CapturedModel
from archerfish.execution.executor import Finished
from archerfish.execution.local import LocalExecutor, PromptListener
from archerfish.execution.step.inputs import StepBatch
from archerfish.sampling.sampler import why_nothing
from archerfish.scheduling.plan import Plan, RoomForGuesses, StepResult


class DeviceExecutor:
    """Keeps one step more under way than is waited for. Steps that the host has a say in it leaves to a local one."""

    max_in_flight = 2

    def __init__(self, local: LocalExecutor, model: CapturedModel, rows: DeviceRows) -> None:
        self._local = local
        self._model = model
        self._rows = rows
        self._last: _Drawing | None = None

    @property
    def guessing(self) -> RoomForGuesses | None:
        return self._local.guessing

    @property
    def prompt_listener(self) -> PromptListener | None:
        return self._local.prompt_listener

    @prompt_listener.setter
    def prompt_listener(self, listener: PromptListener | None) -> None:
        self._local.prompt_listener = listener

    @torch.inference_mode()
    def launch(self, plan: Plan) -> "_Drawing | Finished":
        self._local.take_in(plan)
        if not plan.chunks:
            return Finished(StepResult([]))
        if self._local.features is not None or any(chunk.max_draft_tokens for chunk in plan.chunks):
            self._settle()
            return Finished(self._local.speculate(plan))
        batch = StepBatch.of(plan.chunks)
        asked = self._local.asked_alone(plan, batch)
        if asked is None:
            self._settle()
            return Finished(self._local.compute(plan, batch))
        results = self._model.draw(batch, asked)
        self._last = _Drawing(batch, self._rows, *_copied(results))
        return self._last

    def close(self) -> None:
        self._local.close()
        del self._model

    def _settle(self) -> None:
        """The host is about to read rows: what the device drew for them must be there."""
        if self._last is not None:
            self._last.result()


@dataclass(slots=True, eq=False)
class _Drawing:
    """A step under way."""

    batch: StepBatch
    rows: DeviceRows
    results: Tensor
    """[2, at least as many as are drawn] int32 in main memory, once it is done: tokens, and the bits of their peaks."""
    is_done: Any
    outcome: StepResult | None = None

    def result(self) -> StepResult:
        if self.outcome is None:
            if self.is_done is not None:
                self.is_done.synchronize()
            self.outcome = self._read()
        return self.outcome

    def _read(self) -> StepResult:
        batch, sampling = self.batch, self.batch.sampled_chunks
        drawn, bits = self.results.numpy()[:, : len(sampling)]
        listed = drawn.tolist()
        self.rows.record_device_tokens(batch.rows[sampling], batch.sample_positions, listed)
        tokens: list[list[int]] = [[] for _ in batch.chunks]
        for place, token in zip(sampling.tolist(), listed, strict=True):
            tokens[place] = [token]
        peaks = np.ascontiguousarray(bits).view(np.float32)
        failures = {
            int(sampling[place]): why_nothing(float(peaks[place])) for place in np.flatnonzero(~np.isfinite(peaks))
        }
        return StepResult(tokens, failures=failures)


def _copied(results: Tensor) -> tuple[Tensor, Any]:
    """On its way to main memory, and the event that says when it is there; none where it is there already."""
    if results.device.type == "cpu":
        return results.clone(), None
    landed = torch.empty(results.shape, dtype=results.dtype, pin_memory=True)
    landed.copy_(results, non_blocking=True)
    is_done: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
    is_done.record()
    return landed, is_done
