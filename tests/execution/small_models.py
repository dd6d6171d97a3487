"""Small models with every kind of attention, and a few steps to run them through."""

from dataclasses import replace
from typing import Any

import torch

from archerfish.arch import Arch, AttentionSpec, LayerSpec, MlpSpec, NormSpec, RopeSpec
from archerfish.execution.local import RunnableModel
from archerfish.execution.step.inputs import StepBatch
from archerfish.execution.step.model import ForwardOutput
from archerfish.execution.step.rows import Rows
from archerfish.request import SamplingParams
from archerfish.scheduling.plan import Chunk, SequenceStart

BLOCK_SIZE, NUM_BLOCKS, LENGTH = 16, 40, 90
ROPE = RopeSpec(theta=10_000.0, dim=16)


def layer(**changes: Any) -> LayerSpec:
    attention = AttentionSpec(num_heads=4, num_kv_heads=2, head_dim=16, scale=0.25, rope=ROPE)
    return LayerSpec(attention=replace(attention, **changes), feed_forward=MlpSpec(size=48))


def arch(*layers: LayerSpec, **changes: Any) -> Arch:
    return Arch(
        family="test", vocab_size=61, hidden_size=32, layers=layers, norm=NormSpec(), max_positions=128, **changes
    )


ARCHS = {
    "rotated": arch(layer(), layer()),
    "rotated in part": arch(layer(rope=RopeSpec(theta=100.0, dim=6)), layer()),
    "not rotated": arch(layer(rope=None), layer(rope=None), learned_positions=True),
    "normalized heads": arch(layer(qk_norm="head"), layer(qk_norm="head", rope=None)),
    "normalized rows": arch(layer(qk_norm="width"), layer()),
    "windows and caps": arch(layer(window=20), layer(softcap=3.0), layer(window=20, softcap=2.0)),
    "shared keys": arch(layer(), layer(kv_source=0), layer(window=17), layer(kv_source=2, window=17)),
}


LONG = [
    [(0, 0, 33, False)],
    [(1, 0, 18, False), (0, 33, 36, True)],
    [(0, 69, 1, True), (1, 18, 21, True)],
    [(1, 39, 1, True)],
]
"""Chunks of some steps: row, start, length, and whether a token would be drawn."""
SHORT = [
    [(0, 0, 20, False)],
    [(1, 0, 3, True), (0, 20, 1, True)],
]


def passes(
    model: RunnableModel, rows: Rows, plans: list[list[tuple[int, int, int, bool]]] = LONG
) -> list[ForwardOutput]:
    """Two sequences, cut into chunks that differ from step to step."""
    num_groups = len(rows.tables)
    free = iter(torch.randperm(NUM_BLOCKS, generator=torch.Generator().manual_seed(0)).tolist())
    for row, length in ((0, 70), (1, 40)):
        rows.start(
            SequenceStart(
                row=row,
                tokens=tuple((row + 7 * place) % 61 for place in range(length)),
                num_prompt_tokens=length,
                blocks=tuple(tuple(next(free) for _ in range(-(-length // BLOCK_SIZE))) for _ in range(num_groups)),
                params=SamplingParams(),
                seed=0,
                stop_token_ids=(),
            )
        )
    with torch.inference_mode():
        passed = (model.run(StepBatch.of([Chunk(*chunk, ()) for chunk in plan]), rows) for plan in plans)
        return [ForwardOutput(one.hidden.clone(), one.logits.clone()) for one in passed]
