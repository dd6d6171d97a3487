"""A captured model gives the bits of the same kernels run one by one, and near enough the reference's numbers.

On a GPU the same tests run compiled, and through graphs.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch

from archerfish.arch import Arch, ExpertsSpec, MlpSpec
from archerfish.errors import OutOfBounds
from archerfish.execution.backends.cuda.device_rows import DeviceRows
from archerfish.execution.backends.cuda.graphs import CapturedModel
from archerfish.execution.backends.eager import EagerModel
from archerfish.execution.local import RunnableModel
from archerfish.execution.step.inputs import StepBatch
from archerfish.execution.step.model import StepLimits
from archerfish.kvcache.layout import kv_layout
from archerfish.kvcache.storage import KVStorage
from archerfish.models.decoder import Decoder
from archerfish.ops import KernelTarget, choose_ops, implementations, open_triton
from archerfish.ops.triton.operations import TritonOps
from archerfish.ops.triton.runtime.kernel_launch import INTERPRETED
from archerfish.quant import WeightFormat
from archerfish.scheduling.plan import Chunk
from archerfish.weights.device_packing import DevicePacker
from archerfish.weights.load import random_weights
from tests.execution.drafted import START, begin, check_continuation, check_lines_of_model, tokens_of
from tests.execution.small_models import ARCHS, BLOCK_SIZE, LENGTH, LONG, NUM_BLOCKS, SHORT, arch, layer, passes
from tests.ops.trees import bushy, deep

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
PLANS = SHORT if INTERPRETED else LONG
DTYPE = torch.float16
TARGET = KernelTarget(device=DEVICE, dtype="float16", head_dim=16, block_size=BLOCK_SIZE)
EXPERTS = ExpertsSpec(num_experts=5, num_experts_per_token=2, size=32)
MODELS = {
    **ARCHS,
    "experts": arch(replace(layer(), feed_forward=EXPERTS), layer()),
    "norms after": arch(replace(layer(), norm_outputs=True), layer(), embedding_multiplier=4.0, logit_softcap=5.0),
    "side by side": arch(replace(layer(), parallel=True, shared_input_norm=True), residual_multiplier=0.5),
}


QUANTIZED = ["int8", "w8a8", "int4", "fp8"]
WIDE = replace(layer(), feed_forward=MlpSpec(size=64))
QUANTIZABLE = {
    "one after the other": replace(arch(WIDE, WIDE), hidden_size=64),
    "side by side": replace(
        arch(replace(WIDE, parallel=True, shared_input_norm=True), residual_multiplier=0.5), hidden_size=64
    ),
}


def decoder(of: Arch, triton: TritonOps | None, weights: WeightFormat | None = None) -> Decoder:
    ops = choose_ops(TARGET, implementations(None, triton)).ops
    with torch.device(DEVICE if weights is None else "meta"):
        model = Decoder(of, ops, LENGTH)
    (model if weights is None else model.rotations).to(DEVICE)
    model.requires_grad_(False)
    if weights is None:
        model.to(DTYPE)
        for name, table in list(model.rotations.named_buffers()):
            setattr(model.rotations, name, table.float())
    random_weights(model, 0, None if weights is None else DevicePacker(model, weights), DEVICE)
    return model


def storage(model: Decoder, triton: TritonOps | None) -> KVStorage:
    ops = choose_ops(TARGET, implementations(None, triton)).ops
    return KVStorage(kv_layout(model.arch), NUM_BLOCKS, BLOCK_SIZE, DTYPE, DEVICE, ops)


def rows_of(of: Arch) -> DeviceRows:
    return DeviceRows(2, LENGTH, len(kv_layout(of).windows), BLOCK_SIZE, DEVICE)


def captured(model: Decoder, triton: TritonOps, rows: DeviceRows) -> CapturedModel:
    return CapturedModel(model, storage(model, triton), triton, rows, StepLimits(LENGTH, 2, 2))


def opened() -> TritonOps:
    triton = open_triton(TARGET)
    assert triton is not None
    return triton


@pytest.fixture(autouse=True)
def default_dtype():
    torch.set_default_dtype(DTYPE)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("name", MODELS)
def test_it_has_the_bits_of_operations_run_one_by_one(name: str) -> None:
    triton = opened()
    model, rows = decoder(MODELS[name], triton), rows_of(MODELS[name])
    eager: RunnableModel = EagerModel(model, storage(model, triton))
    graphs = captured(model, triton, rows)
    wanted, found = passes(eager, rows_of(MODELS[name]), PLANS), passes(graphs, rows, PLANS)
    for one, other in zip(wanted, found, strict=True):
        assert one.hidden.isfinite().all() and one.hidden.float().std() > 0.1
        assert torch.equal(other.hidden, one.hidden)
        assert torch.equal(other.logits, one.logits)
    if DEVICE == "cuda":  # The same steps twice more: captured, then replayed.
        for _ in range(2):
            for one, other in zip(wanted, passes(graphs, rows, PLANS), strict=True):
                assert torch.equal(other.logits, one.logits)


@pytest.mark.parametrize("name", MODELS)
def test_it_is_near_the_reference(name: str) -> None:
    triton, rows = opened(), rows_of(MODELS[name])
    model, plain = decoder(MODELS[name], triton), decoder(MODELS[name], None)
    found = passes(captured(model, triton, rows), rows, PLANS)
    wanted = passes(EagerModel(plain, storage(plain, None)), rows_of(MODELS[name]), PLANS)
    for one, other in zip(wanted, found, strict=True):
        torch.testing.assert_close(other.logits, one.logits, rtol=0.02, atol=0.02)


@pytest.mark.parametrize("name", QUANTIZED)
def test_weights_of_few_bits_are_near_the_full_ones(name: str) -> None:
    of = QUANTIZABLE["one after the other"]
    triton, rows = opened(), rows_of(of)
    model, full = decoder(of, triton, WeightFormat(name=name, group=32)), decoder(of, triton)
    found = passes(captured(model, triton, rows), rows, PLANS)
    wanted = passes(EagerModel(full, storage(full, triton)), rows_of(of), PLANS)
    for one, other in zip(wanted, found, strict=True):
        distance = (other.hidden - one.hidden).float().square().mean().sqrt() / one.hidden.float().std()
        assert 0.001 < distance < (0.5 if name == "int4" else 0.15)


@pytest.mark.parametrize(
    ("of", "name"),
    [*(("one after the other", name) for name in QUANTIZED), ("side by side", "w8a8"), ("side by side", "int4")],
)
def test_weights_of_few_bits_have_the_bits_of_operations_run_one_by_one(of: str, name: str) -> None:
    triton, shape = opened(), QUANTIZABLE[of]
    plans = [*SHORT, [(1, 3, 1, True)]] if INTERPRETED else LONG  # A single token is rounded where many are not.
    model, rows = decoder(shape, triton, WeightFormat(name=name, group=32)), rows_of(shape)
    found = passes(captured(model, triton, rows), rows, plans)
    wanted = passes(EagerModel(model, storage(model, triton)), rows_of(shape), plans)
    for one, other in zip(wanted, found, strict=True):
        assert one.hidden.isfinite().all() and one.hidden.float().std() > 0.1
        assert torch.equal(other.hidden, one.hidden)
        assert torch.equal(other.logits, one.logits)


@pytest.mark.parametrize("name", QUANTIZED)
def test_whoever_makes_rows_for_weights_of_few_bits_rounds_them(name: str) -> None:
    triton = opened()
    model = decoder(QUANTIZABLE["one after the other"], triton, WeightFormat(name=name, group=32))
    program = captured(model, triton, rows_of(model.arch))._program
    feed_forward = ["linear_add_norm_quantized", "gated_linear_quantized"]
    layers = ["linear", "qk_norm_rope_kv_write", "attend", *feed_forward, "linear_add_norm_quantized"]
    # Of the last norm somebody else wants the rows themselves.
    layers += ["linear", "qk_norm_rope_kv_write", "attend", *feed_forward, "linear_add_norm"]
    lines = [line.operation for line in program.ops]
    assert lines == ["embed", "rms_norm_quantized", *layers, "select", "wide_linear"]


def test_it_joins_what_one_kernel_can_do() -> None:
    triton = opened()
    model = decoder(MODELS["rotated"], triton)
    lines = [line.operation for line in captured(model, triton, rows_of(model.arch))._program.ops]
    layer_lines = ["linear", "qk_norm_rope_kv_write", "attend", "linear_add_norm", "gated_linear", "linear_add_norm"]
    assert lines == ["embed", "rms_norm", *layer_lines, *layer_lines, "select", "wide_linear"]


def test_more_tokens_than_chunks_are_drawn_after_in_a_large_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("archerfish.execution.backends.cuda.graphs._SMALL_STEP_TOKENS", 4)
    triton, rows = opened(), rows_of(ARCHS["rotated"])
    model = decoder(ARCHS["rotated"], triton)
    graphs = CapturedModel(model, storage(model, triton), triton, rows, StepLimits(LENGTH, 2, 8))
    eager = EagerModel(model, storage(model, triton))
    batch = StepBatch.of([Chunk(0, 0, 4, True), Chunk(1, 0, 3, True)], np.array([5, 0]))
    for row, length in ((0, 9), (1, 3)):
        begin(rows, row, tokens_of(row, length))
    with torch.inference_mode():
        assert torch.equal(graphs.run(batch, rows).logits, eager.run(batch, rows).logits)


@pytest.mark.parametrize(
    ("chunks", "message"),
    [
        ([Chunk(0, 0, 17, True)], "the number of tokens in a step is 17, where the kernels were built for 0 to 16"),
        ([Chunk(0, 0, 1, True)] * 3, "the number of chunks is 3, where the kernels were built for 0 to 2"),
        ([Chunk(0, LENGTH, 1, True)], f"the position after a chunk is {LENGTH + 1}, where .* for 0 to {LENGTH}"),
    ],
)
def test_steps_that_it_was_not_built_for_are_refused(chunks: list[Chunk], message: str) -> None:
    triton, rows = opened(), rows_of(ARCHS["rotated"])
    model = decoder(ARCHS["rotated"], triton)
    graphs = CapturedModel(model, storage(model, triton), triton, rows, StepLimits(16, 2, 2))
    with torch.inference_mode(), pytest.raises(OutOfBounds, match=message):
        graphs.run(StepBatch.of(chunks), rows)


def storage_and_model(of: Arch) -> tuple[KVStorage, CapturedModel, DeviceRows]:
    triton, rows = opened(), rows_of(of)
    model = decoder(of, triton)
    stored = storage(model, triton)
    return stored, CapturedModel(model, stored, triton, rows, StepLimits(LENGTH, 2, 2)), rows


def same_bits(found: torch.Tensor, wanted: torch.Tensor) -> None:
    """The interpreter's products depend on how many rows they have; a tensor core's do not."""
    assert found.isfinite().all()
    if INTERPRETED:
        torch.testing.assert_close(found, wanted, rtol=2.0**-7, atol=2.0**-7)
    else:
        assert torch.equal(found, wanted)


@pytest.mark.parametrize("name", ["shared keys"] if INTERPRETED else MODELS)
def test_every_node_has_the_bits_of_its_path_alone(name: str) -> None:
    _, graphs, rows = storage_and_model(MODELS[name])
    if INTERPRETED:
        check_lines_of_model(graphs, rows, (bushy(3), None), same_bits, (14, 3))
        return
    for _ in range(3):  # Run, captured, replayed.
        for trees in ((bushy(12), deep(5)), (deep(9), None)):
            check_lines_of_model(graphs, rows, trees, same_bits)


def test_a_branch_that_was_moved_to_its_slots_goes_on_as_if_it_had_been_there() -> None:
    stored, graphs, rows = storage_and_model(MODELS["shared keys"])
    check_continuation(graphs, stored, rows, bushy(5), same_bits, 5 if INTERPRETED else START)
