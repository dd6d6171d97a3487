"""A recorded model gives the bits of the same operations run one by one, whatever its attention is made of."""

import pytest
import torch

from archerfish.arch import Arch
from archerfish.execution.backends.cpu_program import RecordedModel
from archerfish.execution.backends.eager import EagerModel
from archerfish.execution.memory import LOGIT_ROWS_AT_ONCE
from archerfish.execution.step.model import StepLimits
from archerfish.execution.step.rows import Rows
from archerfish.kvcache.layout import kv_layout
from archerfish.kvcache.storage import KVStorage
from archerfish.models.decoder import Decoder
from archerfish.ops import KernelTarget, choose_ops, implementations, open_native
from archerfish.ops.cpu.native import NativeOps
from archerfish.quant import WeightFormat
from archerfish.speculation.draft import Draft
from archerfish.weights.load import random_weights
from archerfish.weights.packing import Packer
from tests.execution.drafted import check_continuation, check_lines_of_model
from tests.execution.small_models import ARCHS, BLOCK_SIZE, LENGTH, NUM_BLOCKS, passes
from tests.ops.cpu.native import needs_native
from tests.ops.trees import bushy, deep

pytestmark = needs_native

TARGET = KernelTarget(device="cpu", dtype="bfloat16", head_dim=16, block_size=BLOCK_SIZE, threads=2)


def loaded(of: Arch, native: NativeOps, dtype: torch.dtype) -> tuple[Decoder, KVStorage]:
    ops = choose_ops(TARGET, implementations(native)).ops
    with torch.device("meta"):
        model = Decoder(of, ops, LENGTH)
    model.requires_grad_(False)
    random_weights(model, 0, Packer(model, WeightFormat(name="none")))
    return model, KVStorage(kv_layout(of), NUM_BLOCKS, BLOCK_SIZE, dtype, "cpu", ops)


def runnable(of: Arch, native: NativeOps, dtype: torch.dtype, *, recorded: bool) -> EagerModel | RecordedModel:
    model, storage = loaded(of, native, dtype)
    if not recorded:
        return EagerModel(model, storage)
    return RecordedModel(model, storage, native, StepLimits(LENGTH, 2, 2))


def rows_of(of: Arch) -> Rows:
    return Rows(2, LENGTH, len(kv_layout(of).windows), BLOCK_SIZE)


@pytest.mark.parametrize("name", ARCHS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int8])
def test_it_has_the_bits_of_operations_run_one_by_one(name: str, dtype: torch.dtype) -> None:
    native = open_native(TARGET)
    assert native is not None
    eager, recorded = (runnable(ARCHS[name], native, dtype, recorded=recorded) for recorded in (False, True))
    for wanted, found in zip(*(passes(model, rows_of(ARCHS[name])) for model in (eager, recorded)), strict=True):
        assert wanted.hidden.isfinite().all() and wanted.hidden.std() > 0.1
        assert torch.equal(found.hidden, wanted.hidden)
        assert torch.equal(found.logits, wanted.logits)
        states = wanted.hidden[: LOGIT_ROWS_AT_ONCE // 8]
        assert torch.equal(recorded.logits(states), eager.logits(states))
    recorded.close()


def same_bits(found: torch.Tensor, wanted: torch.Tensor) -> None:
    assert found.isfinite().all()
    assert torch.equal(found, wanted)


@pytest.mark.parametrize("name", ARCHS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8])
@pytest.mark.parametrize("recorded", [False, True], ids=["one by one", "recorded"])
def test_every_node_has_the_bits_of_its_path_alone(name: str, dtype: torch.dtype, recorded: bool) -> None:
    native = open_native(TARGET)
    assert native is not None
    model, rows = runnable(ARCHS[name], native, dtype, recorded=recorded), rows_of(ARCHS[name])
    trees: list[tuple[Draft, Draft | None]] = [(bushy(12), deep(5)), (deep(9), None)]
    for both in trees:
        check_lines_of_model(model, rows, both, same_bits)
    model.close()


@pytest.mark.parametrize("name", ARCHS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8])
def test_a_branch_that_was_moved_to_its_slots_goes_on_as_if_it_had_been_there(name: str, dtype: torch.dtype) -> None:
    native = open_native(TARGET)
    assert native is not None
    decoder, storage = loaded(ARCHS[name], native, dtype)
    model = RecordedModel(decoder, storage, native, StepLimits(LENGTH, 2, 2))
    check_continuation(model, storage, rows_of(ARCHS[name]), bushy(12), same_bits)
    model.close()
