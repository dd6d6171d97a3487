"""Runs the steps of a training, reports its progress and saves its state."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from archerfish.compress.drafters.batches import Batches
from archerfish.compress.drafters.drafter import Drafter, judged
from archerfish.compress.drafters.loss import loss_of
from archerfish.compress.drafters.options import DEFAULT_STEPS, DrafterOptions
from archerfish.compress.drafters.state import State, TrainingProgress
from archerfish.compress.drafters.target import DraftingTarget
from archerfish.console import ProgressBar
from archerfish.engine.driver import uninterrupted

Clock = Callable[[], float]

SECONDS_BETWEEN_SAVES = 60.0
_STEPS_BETWEEN_REPORTS = 10
"""Steps between progress reports: for each, the host waits for the device."""
_UNTIMED, _TIMED = 10, 30
"""Steps that are not timed, because the first ones include initialization, and steps that are."""
_WARM_UP = 100
_DEPTH_DECAY = 0.8
"""Weight of a draft token relative to the one before it: it counts only where that one is accepted."""
_DIVERGENCE_UNTIL = 0.25
"""Share of the steps in which the weight of the divergence falls."""
_MOST_NORM = 1.0
_BETAS = (0.9, 0.95)


@dataclass(frozen=True, slots=True)
class TrainingReport:
    """The report of one step."""

    loss: Tensor
    acceptance: Tensor
    """Acceptance of first draft tokens."""


class Training:
    def __init__(
        self, drafter: Drafter, target: DraftingTarget, batches: Batches, options: DrafterOptions, clock: Clock
    ) -> None:
        self._drafter, self._target, self._batches, self._options = drafter, target, batches, options
        self._parameters = {
            name: parameter for name, parameter in drafter.module.named_parameters() if parameter.requires_grad
        }
        on_gpu = target.decoder.norm.weight.is_cuda
        self._optimizer = torch.optim.AdamW(self._parameters.values(), lr=0.0, betas=_BETAS, fused=on_gpu)
        self._clock, self._last_saved = clock, clock()
        self._step, self._is_whole = 0, True
        self.num_steps = None if options.minutes is not None else options.steps or DEFAULT_STEPS

    def run(self, state: State, started: float) -> bool:
        """Return whether the training is complete; if not, the state allows resuming it.

        `started` is when the given minutes began, by the clock.
        """
        saved = state.load(str(self._target.decoder.norm.weight.device))
        if saved is not None:
            self._restore(saved)
        most = self._options.max_steps
        stop = None if most is None else self._step + most
        try:
            if self.num_steps is None:
                self._time_steps(state, started, stop)
            if self.num_steps is not None:
                self._advance("training", state, self.num_steps, stop)
        except KeyboardInterrupt:
            # A second Ctrl-C interrupts a step that hangs: what was saved before it remains.
            if self._is_whole:
                state.save(self._progress())
            raise
        state.save(self._progress())
        return self._step == self.num_steps

    def _time_steps(self, state: State, started: float, stop: int | None) -> None:
        """Run the first steps, and compute how many fit the given time."""
        assert self._options.minutes is not None
        title, first = "timing steps", self._step
        self._advance(title, state, first + _UNTIMED, stop)
        begun = self._synchronized()
        self._advance(title, state, first + _UNTIMED + _TIMED, stop)
        if self._step < first + _UNTIMED + _TIMED:
            return
        now = self._synchronized()
        seconds = (now - begun) / _TIMED
        # Measuring takes some of the time, too.
        left = self._options.minutes * 60 - (now - started) - self._batches.num_held_out * seconds
        self.num_steps = self._step + max(1, int(left / seconds))

    def _advance(self, title: str, state: State, until: int, stop: int | None) -> None:
        until = until if stop is None else min(until, stop)
        with ProgressBar(title, until) as bar:
            while self._step < until:
                # A Ctrl-C in the middle of a step would leave some weights updated and others not.
                with uninterrupted():
                    self._is_whole = False
                    report = self._learn()
                    self._is_whole = True
                if self._step % _STEPS_BETWEEN_REPORTS == 0:
                    bar.update(self._step, f"loss {report.loss.item():.4f}, acceptance {report.acceptance.item():.1%}")
                if self._clock() - self._last_saved >= SECONDS_BETWEEN_SAVES:
                    self._last_saved = self._clock()
                    state.save(self._progress())

    def _learn(self) -> TrainingReport:
        """Run one step."""
        batch = self._batches.of_step(self._step)
        share = self._divergence_share()
        depths = self._drafter.trained_depths
        weights = [_DEPTH_DECAY**depth for depth in range(depths)]
        losses, acceptance = [], torch.zeros(())
        for depth, judgement in enumerate(judged(self._drafter, self._target, batch, depths)):
            num_predictions = max(1, len(judgement.acceptance))
            losses.append(loss_of(judgement, share).sum() / num_predictions * (weights[depth] / sum(weights)))
            if depth == 0:
                acceptance = judgement.acceptance.detach().sum() / num_predictions
        loss = torch.stack(losses).sum()
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(self._parameters.values(), _MOST_NORM)
        for group in self._optimizer.param_groups:
            group["lr"] = self._options.learning_rate * self._pace()
        self._optimizer.step()
        self._optimizer.zero_grad()
        self._step += 1
        return TrainingReport(loss.detach(), acceptance)

    @property
    def _done(self) -> float:
        """Share of the steps that are done; None while their number is unknown."""
        return 0.0 if self.num_steps is None else self._step / self.num_steps

    def _pace(self) -> float:
        """Return the multiplier of the learning rate: a linear warm-up, then half a cosine down."""
        warm_up = _WARM_UP if self.num_steps is None else max(1, min(_WARM_UP, self.num_steps // 10))
        return min(1.0, (self._step + 1) / warm_up) * (1 + math.cos(math.pi * self._done)) / 2

    def _divergence_share(self) -> float:
        least = self._options.divergence
        return least + (1 - least) * max(0.0, 1 - self._done / _DIVERGENCE_UNTIL)

    def _synchronized(self) -> float:
        """Return the time when the device has finished its work."""
        if self._target.decoder.norm.weight.is_cuda:
            torch.cuda.synchronize()
        return self._clock()

    def _progress(self) -> TrainingProgress:
        parameters = {name: parameter.detach() for name, parameter in self._parameters.items()}
        return TrainingProgress(self._step, self.num_steps, parameters, self._optimizer.state_dict())

    def _restore(self, progress: TrainingProgress) -> None:
        self._step, self.num_steps = progress.step, progress.num_steps
        with torch.no_grad():
            for name, parameter in self._parameters.items():
                parameter.copy_(progress.parameters[name])
        self._optimizer.load_state_dict(dict(progress.optimizer))
