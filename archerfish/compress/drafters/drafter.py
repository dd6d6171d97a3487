"""The interface of trainable drafters, and how their draft tokens are scored."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from archerfish.compress.drafters.batches import TrainingBatch
from archerfish.compress.drafters.loss import Judgement, judge
from archerfish.compress.drafters.target import DraftingTarget, TargetReading, half_precision

_MOST_LOGITS = 1 << 27
"""Logits that are in memory at once: half a gigabyte. Others are computed again for their gradients."""


class Drafter(Protocol):
    """Drafts after a start: the target has read a text up to and including the start's token and sampled the next one.

    The draft token of depth d is the token d + 2 positions after the start, given the ones before it.
    """

    @property
    def module(self) -> nn.Module:
        """Parameters of the drafter, in float32. Modules shared with the target take no gradients."""

    @property
    def taps(self) -> tuple[int, ...]:
        """Layers of the target whose inputs the drafter reads."""

    @property
    def trained_depths(self) -> int:
        """Number of depths that have parameters to train."""

    @property
    def target_ids(self) -> Tensor | None:
        """The target's ids of the tokens that it can draft; None if it can draft all."""

    def states(self, reading: TargetReading, num_depths: int) -> list[Tensor]:
        """Return states for each depth, [rows, length - 1 - depth, width]: one for every start, in order."""

    def logits(self, depth: int, states: Tensor) -> Tensor:
        """[rows, width] -> [rows, tokens it can draft], in float32."""

    def save(self, directory: Path, about: Mapping[str, Any]) -> None:
        """Write the checkpoint in the format that serving reads."""


def judged(drafter: Drafter, target: DraftingTarget, batch: TrainingBatch, num_depths: int) -> list[Judgement]:
    """Judge the draft tokens of each depth, at the positions of the batch that count."""
    reading = target.read(batch.tokens)
    with half_precision(batch.tokens.device):
        return [
            _judged(drafter, target, depth, states, reading.states[:, depth + 1 :], batch.positions(depth))
            for depth, states in enumerate(drafter.states(reading, num_depths))
        ]


def _judged(
    drafter: Drafter, target: DraftingTarget, depth: int, states: Tensor, target_states: Tensor, positions: Tensor
) -> Judgement:
    assert target_states.shape[:2] == states.shape[:2]

    def piece(own: Tensor, wanted: Tensor) -> Judgement:
        return judge(target.logits(wanted), drafter.logits(depth, own), drafter.target_ids)

    at_once = max(1, _MOST_LOGITS // target.decoder.arch.vocab_size)
    every = (tensor.flatten(0, 1)[positions] for tensor in (states, target_states))
    pieces = list(zip(*(torch.split(tensor, at_once) for tensor in every), strict=True))
    if len(pieces) == 1:
        judgements = [piece(*pieces[0])]
    else:
        # Nothing here is random; preserving the generator's state would make the host wait.
        again = partial(checkpoint, piece, use_reentrant=False, preserve_rng_state=False)
        judgements = [Judgement(*again(*chunk)) for chunk in pieces]
    return Judgement(*(torch.cat(parts) for parts in zip(*judgements, strict=True)))
