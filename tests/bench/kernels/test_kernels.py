"""Kernels at a model's shapes: every operation that the model uses, every implementation there is, honest work."""

from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any

import pytest
import torch

from archerfish.arch.arch import Arch, ExpertsSpec, LayerSpec, MlpSpec, NormSpec
from archerfish.arch.rope import RopeSpec
from archerfish.bench.kernels.cases import CaseParams, KernelCase, kernel_cases
from archerfish.bench.kernels.matrices import FORMATS, QuantizedMatrices, format_name
from archerfish.bench.kernels.measure import KernelBenchReport, KernelTimer, measure_kernels
from archerfish.bench.kernels.roofs import Roofs, measure_roofs
from archerfish.machine.peak import Peak
from archerfish.ops import KernelTarget
from archerfish.ops.choose import Implementation, implementations
from archerfish.ops.signatures import Ops
from archerfish.quant import KvFormat, WeightFormat
from tests.arch.shapes import arch, attention, uniform
from tests.ops.cpu.native import KERNELS, native, needs_native

PEAK = Peak(flops=1e9, bandwidth=1e8)
ROOFS = Roofs(PEAK, integer_flops=4e9)
TARGET = KernelTarget(device="cpu", dtype="float32")
_ROPE = RopeSpec(dim=8, theta=10000.0)
DENSE = uniform(
    100, 32, 3, LayerSpec(attention=attention(4, 2, 8, rope=_ROPE), feed_forward=MlpSpec(size=48)), max_positions=64
)
MIXED = arch(
    100,
    32,
    [
        LayerSpec(attention=attention(4, 2, 8, window=5), feed_forward=MlpSpec(size=48, gated=False)),
        LayerSpec(
            attention=attention(4, 2, 8, softcap=3.0),
            feed_forward=ExpertsSpec(num_experts=4, num_experts_per_token=2, size=16),
        ),
    ],
    norm=NormSpec(kind="layer"),
    learned_positions=True,
)


class FixedStopwatch(KernelTimer):
    """Runs each function once, and takes its time from a table."""

    def __init__(self, seconds: dict[Callable[..., Any], float] | None = None) -> None:
        super().__init__("cpu", 0.0)
        self._table = seconds or {}
        self.num_inputs: list[int] = []

    def best(self, function: Callable[..., Any], inputs: Sequence[tuple[Any, ...]]) -> float:
        function(*inputs[0])
        self.num_inputs.append(len(inputs))
        return self._table.get(function, 0.5)


def cases(of: Arch, *batch_sizes: int, quantized: bool = False, kv: str = "float32") -> list[KernelCase]:
    params = CaseParams(
        arch=of,
        batch_sizes=batch_sizes,
        context=40,
        block_size=16,
        device="cpu",
        dtype=torch.float32,
        kv_format=KvFormat(kv, "float32"),
        quantized=quantized,
    )
    return list(kernel_cases(params))


def measure(of: Arch, known: list[Implementation], stopwatch: KernelTimer | None = None) -> KernelBenchReport:
    return measure_kernels(cases(of, 1, 4), known, TARGET, ROOFS, stopwatch or FixedStopwatch(), 2)


@pytest.mark.parametrize(
    ("of", "unused"),
    [
        (DENSE, ("scale", "softcap", "layer_norm", "route", "experts")),
        (MIXED, ("scale", "softcap", "rms_norm", "rotate")),
    ],
    ids=["dense", "mixed"],
)
def test_every_operation_of_a_model_is_run_at_every_batch_size(of: Arch, unused: tuple[str, ...]) -> None:
    report = measure(of, implementations())
    assert report.unused == unused
    assert {timing.operation for timing in report.timings} == {field.name for field in fields(Ops)} - set(unused)
    assert {timing.kernel for timing in report.timings} == {"reference"}
    assert all(timing.ratio == 1.0 for timing in report.timings)
    shapes = [(timing.operation, timing.shape) for timing in report.timings]
    assert len(set(shapes)) == len(shapes)


def test_the_work_of_a_case_is_what_cannot_be_avoided() -> None:
    found = {(case.operation, case.shape): case for case in cases(DENSE, 4)}
    up = found["linear", "up: 4 x 32 -> 96"]
    assert (up.flops, up.num_bytes) == (2 * 4 * 32 * 96, 4 * (32 * 96 + 4 * 32 + 4 * 96))
    decode = found["attend", "4 x 1 token, context 40"]
    assert decode.flops == 4 * 32 * 40 * 4
    assert decode.num_bytes == 4 * (2 * 16 * 40 * 4 + 2 * 4 * 32)
    prompt = found["attend", "prompt of 40 tokens"]
    assert prompt.flops == 4 * 32 * (40 * 41 / 2)
    assert found["activate", "4 x 96 -> 48, silu"].flops == 0
    window = {case.shape: case for case in cases(MIXED, 4) if case.operation == "attend"}
    assert window["4 x 1 token, context 40, window 5"].flops == 4 * 32 * 5 * 4
    experts = next(case for case in cases(MIXED, 1) if case.operation == "experts")
    assert experts.num_bytes == 4 * (2 * 3 * 32 * 16 + 2 * 32)  # One token chooses two of the four.


def test_a_smaller_cache_is_less_to_read_and_to_write() -> None:
    found = {case.operation: case for case in cases(DENSE, 4, kv="int8") if "prompt" not in case.shape}
    head_dim = DENSE.layers[0].attention.head_dim
    one = 16 * (1 + 4 / head_dim)  # A token's keys, or values.
    assert found["attend"].num_bytes == 2 * one * 40 * 4 + 4 * (2 * 4 * 32)
    assert found["write_kv"].num_bytes == 2 * one * 4 + 4 * (2 * 4 * 16) + 4 * 8
    assert found["copy_blocks"].num_bytes == 2 * 2 * one * 4 * 16 + 2 * 4 * 8
    assert found["move_kv"].num_bytes == 2 * 2 * one * 4 + 2 * 4 * 8
    report = measure_kernels(list(found.values()), implementations(), TARGET, ROOFS, FixedStopwatch(), 2)
    assert sum("stored as int8 (lossy)" in timing.shape for timing in report.timings) == 4


def test_layers_of_one_shape_give_one_case_and_take_turns() -> None:
    stopwatch = FixedStopwatch()
    report = measure(DENSE, implementations(), stopwatch)
    assert sum(timing.shape == "qkv: 1 x 32 -> 64" for timing in report.timings) == 1
    assert set(stopwatch.num_inputs) == {2}


def test_implementations_are_compared_and_refusals_reported() -> None:
    def fast(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        return torch.nn.functional.linear(x, weight, bias)

    known = [
        Implementation("linear", "fast", fast, lambda _: None),
        Implementation("linear", "other", fast, lambda target: f"not on a {target.device}"),
        *implementations(),
    ]
    report = measure(DENSE, known, FixedStopwatch({fast: 0.25}))
    qkv = [timing for timing in report.timings if timing.shape == "qkv: 4 x 32 -> 64"]
    assert [(timing.kernel, timing.ratio) for timing in qkv] == [("fast", 1.0), ("reference", 2.0)]
    flops, num_bytes = 2 * 4 * 32 * 64, 4 * (32 * 64 + 4 * 32 + 4 * 64)
    assert qkv[0].flops_per_second == flops / 0.25
    assert qkv[0].bytes_per_second == num_bytes / 0.25
    assert qkv[0].roof_share == pytest.approx(max(flops / 1e9, num_bytes / 1e8) / 0.25)
    assert qkv[0].limit == "bandwidth"
    assert [(refusal.kernel, refusal.reason) for refusal in report.refusals] == [("other", "not on a cpu")]


def test_a_stopwatch_calls_with_every_input_in_turn() -> None:
    called: list[int] = []
    assert KernelTimer("cpu", 0.0).best(called.append, [(1,), (2,)]) > 0
    assert called == [1, 2, 1, 2]


# -- quantized matrices -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("weights", FORMATS, ids=format_name)
@pytest.mark.parametrize(("outputs", "inputs"), [(64, 64), (130, 96), (1, 200)])
def test_matrices_take_the_bytes_that_packing_a_real_one_takes(
    weights: WeightFormat, outputs: int, inputs: int
) -> None:
    made, real = QuantizedMatrices(weights).make(outputs, inputs), weights.pack(torch.randn(outputs, inputs))
    assert (made.nbytes, made.shape) == (real.nbytes, real.shape)
    assert QuantizedMatrices(weights).num_bytes(outputs, inputs) == real.nbytes
    experts = QuantizedMatrices(weights).make(3, outputs, inputs)
    assert (experts.nbytes, experts.shape) == (3 * real.nbytes, (3, outputs, inputs))
    assert QuantizedMatrices(weights).num_bytes(3, outputs, inputs) == 3 * real.nbytes


def test_operations_with_matrices_come_in_every_format_and_their_own() -> None:
    found: dict[tuple[str, str], list[str | None]] = {}
    listed = cases(MIXED, 4, quantized=True)
    for case in listed:
        found.setdefault((case.operation, case.shape), []).append(case.format)
    every = [None, "int8", "w8a8", "int4 g32", "int4 g64", "int4 g128", "int4 g64 zeros"]
    assert found["linear", "qkv: 4 x 32 -> 64"] == every
    assert found["linear", "down: 4 x 48 -> 32"] == every
    assert found["experts", "4 x 32, 2 of 4 experts of 16"] == every
    assert found["linear", "head: 4 x 32 -> 100"] == [None, "int8", "w8a8"]
    assert found["embed", "4 of 100 rows x 32"] == [None, "int8", "w8a8"]
    assert found["linear", "router: 4 x 32 -> 4"] == [None]
    assert found["attend", "prompt of 40 tokens"] == [None]
    names = [(case.operation, case.shape) for case in listed]
    assert names == [name for name, formats in found.items() for _ in formats], "alike ones stand side by side"


def test_the_bytes_of_a_quantized_case_are_those_of_its_packed_matrices() -> None:
    found = {(case.operation, case.shape, case.format): case for case in cases(MIXED, 1, quantized=True)}
    qkv = found["linear", "qkv: 1 x 32 -> 64", "int4 g32"]
    assert qkv.num_bytes == 64 * (32 / 2 + 2) + 4 * (32 + 64)  # Two nibbles a byte, and a float16 scale for each 32.
    assert qkv.flops == 2 * 32 * 64
    head = found["linear", "head: 1 x 32 -> 100", "int8"]
    assert head.num_bytes == 128 * (32 + 4) + 4 * (32 + 100)  # Whole panels of 64 outputs, a float32 scale for each.
    embed = found["embed", "1 of 100 rows x 32", "int8"]
    assert embed.num_bytes == pytest.approx(128 * (32 + 4) / 100 + 4 * 32 + 8)
    experts = found["experts", "1 x 32, 2 of 4 experts of 16", "int8"]
    up, down = 64 * (32 + 4), 64 * (32 + 4)  # 32 x 32 and 32 x 16, filled up: 64 outputs, groups of 32 inputs.
    assert experts.num_bytes == 2 * (up + down) + 4 * 2 * 32  # Of four experts one token reads two.


@needs_native
def test_quantized_cases_run_where_packed_matrices_are_taken_and_have_a_roof_of_their_own() -> None:
    with_matrices = ("linear", "embed", "experts")
    selected = [case for case in cases(MIXED, 4, quantized=True) if case.operation in with_matrices]
    roofs = Roofs(Peak(flops=1e9, bandwidth=1e12), integer_flops=4e9)
    report = measure_kernels(selected, implementations(native(KERNELS[0])), TARGET, roofs, FixedStopwatch(), 2)
    assert report.integer_flops == 4e9
    quantized = [timing for timing in report.timings if timing.format is not None]
    assert {timing.kernel for timing in quantized} == {f"native {KERNELS[0]}"}
    assert len(quantized) == sum(case.format is not None for case in selected)
    assert len(report.timings) == len(quantized) + 2 * sum(case.format is None for case in selected)
    for kind, flops in ((None, 1e9), ("int8", 4e9)):
        [case] = (case for case in selected if (case.shape, case.format) == ("up: 4 x 32 -> 48", kind))
        timing = next(one for one in report.timings if (one.shape, one.format) == (case.shape, kind))
        assert (timing.roof_share, timing.limit) == (pytest.approx(case.flops / flops / 0.5), "compute")


def test_without_kernels_for_them_nothing_is_quantized() -> None:
    assert measure_roofs(PEAK, implementations(), TARGET) == Roofs(PEAK, None)


@needs_native
def test_products_of_integers_have_a_measured_roof(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("archerfish.bench.kernels.roofs._SECONDS", 0.0)
    roofs = measure_roofs(PEAK, implementations(native(KERNELS[0])), TARGET)
    assert roofs.peak == PEAK and roofs.integer_flops is not None and roofs.integer_flops > 0
