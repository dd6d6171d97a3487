"""Medusa's heads in training: each learns the target's distributions one position further ahead."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from archerfish.arch.heads import MedusaSpec
from archerfish.compress.drafters.options import DrafterOptions
from archerfish.compress.drafters.target import TargetReading
from archerfish.models.decoder import Decoder
from archerfish.models.medusa import Medusa
from archerfish.ops.signatures import Ops
from archerfish.weights.heads import choose_tokens, save_head


class MedusaDrafter:
    taps: tuple[int, ...] = ()

    def __init__(self, heads: Medusa, base: str) -> None:
        self.module = heads
        self._base = base

    @property
    def trained_depths(self) -> int:
        return self.module.spec.num_heads

    @property
    def target_ids(self) -> Tensor | None:
        return self.module.target_ids

    def states(self, reading: TargetReading, num_depths: int) -> list[Tensor]:
        assert num_depths == self.trained_depths
        states = reading.states[:, :-1]
        outputs = self.module(states.flatten(0, 1))
        return [output.view(states.shape)[:, : states.shape[1] - depth] for depth, output in enumerate(outputs)]

    def logits(self, depth: int, states: Tensor) -> Tensor:
        return self.module.logits(depth, states)

    def save(self, directory: Path, about: Mapping[str, Any]) -> None:
        save_head(self.module.to(torch.bfloat16), directory, self._base, about)


def medusa_drafter(
    target: Decoder, target_ids: Tensor | None, options: DrafterOptions, ops: Ops, base: str
) -> MedusaDrafter:
    """Return new heads that end in the target's own head, and begin by adding nothing to the target's state."""
    arch = target.arch
    spec = MedusaSpec(
        num_heads=options.depths,
        num_layers=options.layers or 1,
        hidden_size=arch.hidden_size,
        vocab_size=arch.vocab_size if target_ids is None else len(target_ids),
        target_vocab_size=arch.vocab_size,
        has_own_head=False,
    )
    heads = Medusa(spec, target.head, ops)
    with torch.no_grad():
        for parameter in heads.heads.parameters():
            parameter.zero_()
    heads.to(target.head.weight.device)
    if target_ids is not None:
        choose_tokens(heads, target_ids.to(target.head.weight.device))
    return MedusaDrafter(heads, base)
