"""Trains a model for a given time: measures the step first, plans their number from it, resumes where it stopped."""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from archerfish.models.decoder import Decoder
from recipes.box.model import half_precision, load_parameters, logits_of_rows, save_parameters
from recipes.box.optimizer import Optimizers, learning_rate
from recipes.box.pack import Packed
from recipes.box.shapes import CONTEXT

FINAL_SHARE = 0.25
"""Of the training: the last phase, on the cleaner mixture."""

_OPTIMIZER_SHARE = 1.12  # A step with its update takes this much longer than without.

Loss = Callable[[Decoder, Tensor], Tensor]
"""Of a model on rows [rows, CONTEXT + 1] of tokens."""


class Rows(Protocol):
    def next(self, *, final: bool) -> Tensor:
        """[rows, CONTEXT + 1], from the main or the last phase's mixture."""


@dataclass(frozen=True)
class TrainingPlan:
    name: str
    """Of what is written: NAME.safetensors, NAME.state.pt, NAME.log.jsonl."""
    work: Path
    seconds: float
    matrix_lr: float = 0.02
    other_lr: float = 0.003


def train(plan: TrainingPlan, model: Decoder, rows: Rows, loss: Loss) -> None:
    """Train the model in place. Progress is a line every so often, and a log for the curves."""
    started = time.monotonic()
    optimizers = Optimizers(model, plan.matrix_lr, plan.other_lr)
    first = _resume(plan, model, optimizers)
    seconds_a_step = _measure(model, rows, loss)
    left = plan.seconds - (time.monotonic() - started)
    num_steps = first + max(1, int(left / seconds_a_step))
    tokens_a_step = rows.next(final=False).shape[0] * CONTEXT
    rate = tokens_a_step / seconds_a_step / 1e6
    print(f"{plan.name}: {seconds_a_step * 1e3:.1f} ms a step, {rate:.2f} M tokens/s, {num_steps} steps", flush=True)
    with (plan.work / f"{plan.name}.log.jsonl").open("a") as log:
        for step in range(first, num_steps):
            done = step / num_steps
            value = loss(model, rows.next(final=done > 1 - FINAL_SHARE))
            value.backward()
            optimizers.step(learning_rate(done))
            if step % 100 == 0 or step == num_steps - 1:
                entry = {"step": step, "tokens": (step + 1) * tokens_a_step, "loss": round(value.item(), 4)}
                log.write(json.dumps(entry) + "\n")
                log.flush()
            if step % 1000 == 0:
                spent = time.monotonic() - started
                print(f"  step {step} of {num_steps}, loss {value.item():.3f}, {spent:.0f} s", flush=True)
    save_parameters(model, plan.work / f"{plan.name}.safetensors")
    torch.save({"step": num_steps, "optimizers": optimizers.state()}, plan.work / f"{plan.name}.state.pt")


class DataRows:
    """All tokens on the device, and windows drawn from them there: the host never waits for the disk."""

    def __init__(self, packed: Packed, num_rows: int, device: str, seed: int = 1) -> None:
        self._tokens = packed.tokens.to(device)
        self._starts, self._lengths = packed.starts.to(device), packed.lengths.to(device)
        self._shares = [share.to(device) for share in packed.shares]
        self._num_rows = num_rows
        self._generator = torch.Generator(device=device).manual_seed(seed)
        self._window = torch.arange(CONTEXT + 1, device=device)

    def next(self, *, final: bool) -> Tensor:
        chosen = torch.multinomial(self._shares[final], self._num_rows, replacement=True, generator=self._generator)
        where = torch.rand(self._num_rows, device=self._tokens.device, generator=self._generator)
        first = self._starts[chosen] + (where * (self._lengths[chosen] - CONTEXT - 1)).long()
        return self._tokens[first[:, None] + self._window].long()


def next_token_loss(model: Decoder, rows: Tensor) -> Tensor:
    with half_precision(rows.device.type):
        logits = logits_of_rows(model, rows[:, :-1])
    return F.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())


def compiled(loss: Loss, device: str) -> Loss:
    """Compiled where that pays for itself."""
    return torch.compile(loss) if device == "cuda" else loss


def _measure(model: Decoder, rows: Rows, loss: Loss) -> float:
    """Seconds of one step after compilation. The gradients are thrown away."""
    seconds = 0.0
    for count in (3, 20):
        started = time.monotonic()
        for _ in range(count):
            value = loss(model, rows.next(final=False))
            value.backward()
        value.item()  # Waits for the device.
        model.zero_grad(set_to_none=True)
        seconds = (time.monotonic() - started) / count
    return seconds * _OPTIMIZER_SHARE


def _resume(plan: TrainingPlan, model: Decoder, optimizers: Optimizers) -> int:
    """The step to go on from: 0 without a checkpoint."""
    state = plan.work / f"{plan.name}.state.pt"
    if not state.exists():
        return 0
    load_parameters(model, plan.work / f"{plan.name}.safetensors")
    saved = torch.load(state, map_location=model.embedding.weight.device, weights_only=True)
    optimizers.load(saved["optimizers"])
    return int(saved["step"])
