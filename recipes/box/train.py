"""Trains a model for a given time: measures the step first, plans their number from it, resumes where it stopped."""

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from archerfish.models.decoder import Decoder
from recipes.box.model import half_precision, load_parameters, logits_of_rows, save_parameters
from recipes.box.optimizer import Optimizers
from recipes.box.pack import Packed
from recipes.box.shapes import CONTEXT

_CHECKPOINT_SECONDS = 90.0
_HELD_OUT_TIMES = 12

Loss = Callable[[Decoder, Tensor], Tensor]
"""The loss of a model on rows [rows, CONTEXT + 1] of tokens."""
Schedule = Callable[[float], float]
"""Multiplier of the learning rates when a share of the training is done."""
HeldOut = Callable[[Decoder], dict[str, float]]
"""Scores of a model on text it does not train on."""


class Rows(Protocol):
    def next(self, *, final: bool) -> Tensor:
        """Return [rows, CONTEXT + 1] from the mixture of the main or the last phase."""

    def seek(self, step: int) -> None:
        """Continue as if this many batches had been drawn in some earlier run."""


@dataclass(frozen=True)
class TrainingPlan:
    name: str
    """Stem of the files that are written: NAME.safetensors, NAME.state.pt, NAME.log.jsonl."""
    work: Path
    seconds: float
    schedule: Schedule
    final: bool
    """Whether this is the last phase, on the cleaner mixture."""
    matrix_lr: float = 0.02
    other_lr: float = 0.003


@dataclass
class _Progress:
    """The contents of a checkpoint besides the weights."""

    num_steps: int
    step: int = 0
    seconds: float = 0.0


def train(plan: TrainingPlan, model: Decoder, rows: Rows, loss: Loss, held_out: HeldOut) -> None:
    """Train the model in place. If it was stopped, it resumes from its last checkpoint, as planned."""
    optimizers = Optimizers(model, plan.matrix_lr, plan.other_lr)
    progress = _resume(plan, model, optimizers)
    tokens_a_step = rows.next(final=plan.final).shape[0] * CONTEXT
    if progress is None:
        started = time.monotonic()
        seconds_a_step = _measure(plan, model, rows, loss)
        left = plan.seconds - (time.monotonic() - started)
        progress = _Progress(num_steps=max(1, int(left / seconds_a_step)))
        tokens_per_second = round(tokens_a_step / seconds_a_step)
        about = {
            "num_steps": progress.num_steps,
            "tokens_a_step": tokens_a_step,
            "tokens_per_second": tokens_per_second,
        }
        _log(plan, {"plan": {**about, "device": _device_name(model)}})
        print(f"{plan.name}: {seconds_a_step * 1e3:.1f} ms a step, {about}", flush=True)
    rows.seek(progress.step)
    started = last_saved = time.monotonic() - progress.seconds
    while progress.step < progress.num_steps:
        value = loss(model, rows.next(final=plan.final))
        value.backward()
        optimizers.step(plan.schedule(progress.step / progress.num_steps))
        progress.step += 1
        _report(plan, progress, tokens_a_step, value, time.monotonic() - started, model, held_out)
        if time.monotonic() - last_saved > _CHECKPOINT_SECONDS:
            last_saved = time.monotonic()
            progress.seconds = last_saved - started
            _save(plan, model, optimizers, progress)
    progress.seconds = time.monotonic() - started
    _save(plan, model, optimizers, progress)


class DataRows:
    """All tokens on the device, and windows drawn from them there: the host never waits for the disk."""

    def __init__(self, packed: Packed, num_rows: int, device: str, seed: int = 1) -> None:
        self._tokens = packed.tokens.to(device)
        self._starts, self._lengths = packed.starts.to(device), packed.lengths.to(device)
        self._documents = packed.documents.to(device)
        self._shares = [share.to(device) for share in packed.shares]
        self._num_rows = num_rows
        self._seed = seed
        self._generator = torch.Generator(device=device).manual_seed(seed)
        self._window = torch.arange(CONTEXT + 1, device=device)

    def seek(self, step: int) -> None:
        self._generator.manual_seed(self._seed + step)

    def next(self, *, final: bool) -> Tensor:
        """Return windows at random positions, three of four moved to the next document's beginning if that is near.

        Requests start at a beginning; half of those windows have the end-of-text token before it, half have nothing.
        """
        chosen = torch.multinomial(self._shares[final], self._num_rows, replacement=True, generator=self._generator)
        where, aligned = torch.rand(2, self._num_rows, device=self._tokens.device, generator=self._generator)
        first = self._starts[chosen] + (where * (self._lengths[chosen] - CONTEXT - 1)).long()
        place = torch.searchsorted(self._documents, first).clamp(max=len(self._documents) - 1)
        beginning = self._documents[place] - (aligned < 0.375).long()
        last = self._starts[chosen] + self._lengths[chosen] - CONTEXT - 1
        near = (beginning - first < CONTEXT) & (beginning <= last) & (beginning >= self._starts[chosen])
        first = torch.where(near & (aligned < 0.75), beginning, first)
        return self._tokens[first[:, None] + self._window].long()


def next_token_loss(model: Decoder, rows: Tensor) -> Tensor:
    with half_precision(rows.device.type):
        logits = logits_of_rows(model, rows[:, :-1])
    return F.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())


def compiled(loss: Loss, device: str) -> Loss:
    """Return a compiled function, where compilation pays for itself."""
    return torch.compile(loss) if device == "cuda" else loss


def _measure(plan: TrainingPlan, model: Decoder, rows: Rows, loss: Loss) -> float:
    """Return the seconds of one step after compilation.

    Nothing is learned: the learning rate is 0, the momenta are reset.
    """
    optimizers = Optimizers(model, plan.matrix_lr, plan.other_lr)
    seconds = 0.0
    for count in (3, 20):
        started = time.monotonic()
        for _ in range(count):
            value = loss(model, rows.next(final=plan.final))
            value.backward()
            optimizers.step(0.0)
        value.item()  # Waits for the device.
        seconds = (time.monotonic() - started) / count
    return seconds


def _report(
    plan: TrainingPlan,
    progress: _Progress,
    tokens_a_step: int,
    loss: Tensor,
    seconds: float,
    model: Decoder,
    held_out: HeldOut,
) -> None:
    """Log a line every hundred steps and at the end; now and then log and print the held-out scores."""
    step, is_last = progress.step, progress.step == progress.num_steps
    scored = is_last or step % max(1, progress.num_steps // _HELD_OUT_TIMES) == 0
    if not (scored or step % 100 == 0):
        return
    entry: dict[str, Any] = {"step": step, "tokens": step * tokens_a_step, "seconds": round(seconds, 1)}
    entry["loss"] = round(loss.item(), 4)
    if scored:
        entry["held_out"] = held_out(model)
        print(f"  {entry}", flush=True)
    _log(plan, entry)


def _log(plan: TrainingPlan, entry: dict[str, Any]) -> None:
    with (plan.work / f"{plan.name}.log.jsonl").open("a") as log:
        log.write(json.dumps(entry) + "\n")


def _device_name(model: Decoder) -> str:
    return torch.cuda.get_device_name() if model.embedding.weight.is_cuda else "CPU"


def _save(plan: TrainingPlan, model: Decoder, optimizers: Optimizers, progress: _Progress) -> None:
    """Save the weights first, then the state that refers to them, each atomically."""
    weights, state = plan.work / f"{plan.name}.safetensors", plan.work / f"{plan.name}.state.pt"
    new_weights, new_state = weights.with_suffix(".new"), state.with_suffix(".new")
    save_parameters(model, new_weights)
    torch.save({"progress": asdict(progress), "optimizers": optimizers.state()}, new_state)
    new_weights.replace(weights)
    new_state.replace(state)


def _resume(plan: TrainingPlan, model: Decoder, optimizers: Optimizers) -> _Progress | None:
    state = plan.work / f"{plan.name}.state.pt"
    if not state.exists():
        return None
    load_parameters(model, plan.work / f"{plan.name}.safetensors")
    saved = torch.load(state, map_location=model.embedding.weight.device, weights_only=True)
    optimizers.load(saved["optimizers"])
    return _Progress(**saved["progress"])
