"""A recorded model gives the bits of the same operations run one by one, whatever its attention is made of."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from archerfish.arch import Arch, AttentionSpec, LayerSpec, MlpSpec, NormSpec, RopeSpec
from archerfish.execution.eager import EagerModel
from archerfish.execution.inputs import Outline
from archerfish.execution.memory import LOGIT_ROWS_AT_ONCE
from archerfish.execution.passed import Passed
from archerfish.execution.recorded import RecordedModel
from archerfish.execution.rows import Rows
from archerfish.kvcache.layout import kv_layout
from archerfish.kvcache.storage import KVStorage
from archerfish.models.decoder import Decoder
from archerfish.ops import Target, choose_ops, implementations, open_native
from archerfish.ops.cpu.native import NativeOps
from archerfish.quant import WeightFormat
from archerfish.request import SamplingParams
from archerfish.scheduling.plan import Chunk, SequenceStart
from archerfish.weights.load import random_weights
from archerfish.weights.packing import Packer
from tests.ops.cpu.native import needs_native

pytestmark = needs_native

BLOCK_SIZE, NUM_BLOCKS, LENGTH = 16, 40, 90
ROPE = RopeSpec(theta=10_000.0, dim=16)
TARGET = Target(device="cpu", dtype="bfloat16", head_dim=16, block_size=BLOCK_SIZE, threads=2)


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


def runnable(of: Arch, native: NativeOps, dtype: torch.dtype, *, recorded: bool) -> EagerModel | RecordedModel:
    ops = choose_ops(TARGET, implementations(native)).ops
    with torch.device("meta"):
        model = Decoder(of, ops, LENGTH)
    model.requires_grad_(False)
    random_weights(model, 0, Packer(model, WeightFormat(name="none")))
    storage = KVStorage(kv_layout(of), NUM_BLOCKS, BLOCK_SIZE, dtype, "cpu", ops)
    if not recorded:
        return EagerModel(model, storage)
    return RecordedModel(model, storage, native, max_rows=LENGTH, max_num_seqs=2)


def passes(model: EagerModel | RecordedModel, of: Arch) -> list[Passed]:
    """Two sequences, cut into chunks that differ from step to step."""
    num_groups = len(kv_layout(of).windows)
    rows = Rows(2, LENGTH, num_groups, BLOCK_SIZE)
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
    plans = [
        [(0, 0, 33, False)],
        [(1, 0, 18, False), (0, 33, 36, True)],
        [(0, 69, 1, True), (1, 18, 21, True)],
        [(1, 39, 1, True)],
    ]
    with torch.inference_mode():
        passed = (model.run(Outline.of([Chunk(*chunk, ()) for chunk in plan]), rows) for plan in plans)
        return [Passed(hidden.clone(), logits.clone()) for hidden, logits in passed]


@pytest.mark.parametrize("name", ARCHS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int8])
def test_it_has_the_bits_of_operations_run_one_by_one(name: str, dtype: torch.dtype) -> None:
    native = open_native(TARGET)
    assert native is not None
    eager, recorded = (runnable(ARCHS[name], native, dtype, recorded=recorded) for recorded in (False, True))
    for wanted, found in zip(passes(eager, ARCHS[name]), passes(recorded, ARCHS[name]), strict=True):
        assert wanted.hidden.isfinite().all() and wanted.hidden.std() > 0.1
        assert torch.equal(found.hidden, wanted.hidden)
        assert torch.equal(found.logits, wanted.logits)
        states = wanted.hidden[: LOGIT_ROWS_AT_ONCE // 8]
        assert torch.equal(recorded.logits(states), eager.logits(states))
    recorded.close()
