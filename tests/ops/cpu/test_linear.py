"""Products with packed matrices: right against exact arithmetic in every format, and the same bits for every batch."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from archerfish.ops.packed import PackedWeight, pack_floats, pack_int4, pack_int8
from archerfish.quant import WeightFormat
from tests.lanes import examples
from tests.ops.cpu.native import KERNELS, every_kernel, native, needs_native

pytestmark = needs_native

FORMATS = {
    "float32": WeightFormat(name="none"),
    "bfloat16": WeightFormat(name="none"),
    "int8": WeightFormat(name="int8"),
    "w8a8": WeightFormat(name="w8a8"),
    "int4 g32": WeightFormat(name="int4", group=32),
    "int4 g64": WeightFormat(name="int4", group=64),
    "int4 g128": WeightFormat(name="int4", group=128),
    "int4 zeros": WeightFormat(name="int4", group=64, zero_points=True),
}


def noise(seed: int, *shape: int, spread: float = 1.0) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape) * spread).float()


def packed(kind: str, weight: Tensor) -> PackedWeight:
    return FORMATS[kind].pack(weight.bfloat16() if kind == "bfloat16" else weight)


def as_read(weight: PackedWeight, kernels: str) -> Tensor:
    """The matrix as the kernels understand it, row by row."""
    return native(kernels).embed(torch.arange(weight.num_outputs), weight)


def as_packed(x: Tensor, weight: PackedWeight) -> Tensor:
    """x after it was rounded as this weight's products round it, exactly."""
    if weight.format == 1:
        return x.bfloat16().double()
    if weight.format == 0:
        return x.double()
    shape = (len(x), weight.padded_inputs // weight.group, weight.group)
    padded = torch.nn.functional.pad(x, (0, weight.padded_inputs - x.shape[1])).view(shape)
    scale = padded.abs().amax(-1, keepdim=True) / 127
    inverse = torch.where(scale > 0, 127 / padded.abs().amax(-1, keepdim=True), 0)
    whole = (padded * inverse).round().double() * scale.double()
    return whole.flatten(1)[:, : x.shape[1]]


def exact(x: Tensor, weight: PackedWeight, bias: Tensor | None, kernels: str) -> Tensor:
    wide = as_packed(x, weight) @ as_read(weight, kernels).double().T
    return wide if bias is None else wide + bias.double()


@every_kernel
@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize(("outputs", "inputs"), [(64, 64), (1, 1), (100, 50), (63, 129), (65, 7), (200, 512)])
def test_products_are_exact_but_for_the_last_bits(kernels: str, kind: str, outputs: int, inputs: int) -> None:
    weight, bias = packed(kind, noise(0, outputs, inputs)), noise(1, outputs)
    for rows in (1, 2, 5, 6, 7, 16, 17, 32, 33, 97, 300):
        x = noise(rows, rows, inputs)
        found = native(kernels).linear(x, weight, bias)
        wanted = exact(x, weight, bias, kernels)
        assert found.shape == (rows, outputs)
        # A rounded half may fall on either side where the product with the inverse scale is not exact.
        slack = 1e-5 * inputs**0.5 if weight.format < 2 else 4e-3 * inputs**0.5
        torch.testing.assert_close(found.double(), wanted, atol=slack, rtol=1e-5)


@every_kernel
@pytest.mark.parametrize("kind", FORMATS)
def test_a_row_has_the_same_bits_in_every_batch_and_on_every_number_of_threads(kernels: str, kind: str) -> None:
    weight, x = packed(kind, noise(0, 300, 200)), noise(1, 33, 200)
    alone = torch.cat([native(kernels, 1).linear(x[row : row + 1], weight, None) for row in range(33)])
    for threads in (1, 2, 3):
        assert torch.equal(native(kernels, threads).linear(x, weight, None), alone)
        for rows in (2, 7):
            assert torch.equal(native(kernels, threads).linear(x[:rows], weight, None), alone[:rows])


@pytest.mark.skipif(len(KERNELS) < 2, reason="this CPU runs one set of kernels")
@pytest.mark.parametrize("kind", [kind for kind in FORMATS if kind != "bfloat16"])
def test_every_instruction_set_gives_the_same_bits(kind: str) -> None:
    """bfloat16 apart: AVX-512 and tiles have instructions for pairs of products that round in their own ways."""
    weight, bias = packed(kind, noise(0, 130, 160)), noise(2, 130)
    for rows in (1, 9, 16, 40, 261):
        x = noise(1, rows, 160)
        results = [native(kernels).linear(x, weight, bias) for kernels in KERNELS]
        for result in results[1:]:
            assert torch.equal(result, results[0])


@examples(80)
@given(st.integers(1, 150), st.integers(1, 150), st.integers(0, 50), st.sampled_from(list(FORMATS)), st.integers(0, 99))
def test_any_shape(outputs: int, inputs: int, rows: int, kind: str, seed: int) -> None:
    weight, x = packed(kind, noise(seed, outputs, inputs)), noise(seed + 1, rows, inputs)
    found = native(KERNELS[0]).linear(x, weight, None)
    assert found.shape == (rows, outputs)
    slack = 1e-5 * inputs**0.5 if weight.format < 2 else 4e-3 * inputs**0.5
    torch.testing.assert_close(found.double(), exact(x, weight, None, KERNELS[0]), atol=slack, rtol=1e-5)


@every_kernel
@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("broken", [torch.nan, torch.inf, -torch.inf])
def test_what_is_no_number_spoils_its_own_row_and_no_other(kernels: str, kind: str, broken: float) -> None:
    weight, x = packed(kind, noise(0, 70, 64)), noise(1, 5, 64)
    fine = native(kernels).linear(x, weight, None)
    x[2, 17] = broken
    found = native(kernels).linear(x, weight, None)
    assert not found[2].isfinite().any()
    for row in (0, 1, 3, 4):
        assert torch.equal(found[row], fine[row])


@every_kernel
@pytest.mark.parametrize("kind", [kind for kind in FORMATS if kind not in ("float32", "bfloat16")])
@pytest.mark.parametrize("spread", [0.0, 1e-42, 1e-30, 1e30])
def test_extreme_activations(kernels: str, kind: str, spread: float) -> None:
    weight, x = packed(kind, noise(0, 70, 64, spread=1e-3)), noise(1, 2, 64) * spread
    found = native(kernels).linear(x, weight, None)
    wanted = x.double() @ as_read(weight, kernels).double().T
    torch.testing.assert_close(found.double(), wanted, atol=0.02 * float(wanted.abs().max()) + 1e-38, rtol=0)


def test_packing_preserves_every_number() -> None:
    weight = noise(0, 70, 50)
    for kernels in KERNELS:
        assert torch.equal(as_read(pack_floats(weight), kernels), weight)
        assert torch.equal(as_read(pack_floats(weight.bfloat16()), kernels), weight.bfloat16().float())
    values = torch.randint(-127, 128, (70, 50), dtype=torch.int8)
    scales = torch.rand(70)
    assert torch.equal(as_read(pack_int8(values, scales, 32), KERNELS[0]), values * scales[:, None])
    nibbles, shifts = (
        torch.randint(0, 16, (70, 50), dtype=torch.uint8),
        torch.randint(0, 16, (70, 2), dtype=torch.uint8),
    )
    steps = torch.rand(70, 2).half()
    spread = steps.float().repeat_interleave(32, 1)[:, :50]
    plain = (nibbles.float() - 8) * spread
    shifted = (nibbles.float() - shifts.float().repeat_interleave(32, 1)[:, :50]) * spread
    assert torch.equal(as_read(pack_int4(nibbles, steps, None, 32), KERNELS[0]), plain)
    assert torch.equal(as_read(pack_int4(nibbles, steps, shifts, 32), KERNELS[0]), shifted)
