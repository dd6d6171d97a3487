"""Norms, rotation, activation and sums: against the reference operations in double precision."""

import numpy as np
import pytest
import torch
from torch import Tensor

from archerfish.ops.reference import layers as reference
from tests.ops.cpu.native import KERNELS, every_kernel, native, needs_native

pytestmark = needs_native

WIDTHS = [1, 15, 16, 17, 100]


def noise(seed: int, *shape: int, spread: float = 1.0) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape) * spread).float()


def close(found: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(found.double(), wanted.double(), atol=3e-6, rtol=3e-6)


@every_kernel
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("rows", [0, 1, 9])
def test_norms(kernels: str, width: int, rows: int) -> None:
    ops, x = native(kernels), noise(0, rows, width) + 1
    weight, bias = noise(1, width), noise(2, width)
    mean = x.double().square().mean(-1, keepdim=True)
    close(ops.rms_norm(x, weight, 1e-6, 1.0), x / torch.sqrt(mean + 1e-6) * (weight + 1.0))
    wide = [one.double() for one in (x, weight, bias)]
    close(ops.layer_norm(x, weight, bias, 1e-5), reference.layer_norm(*wide, 1e-5))


@every_kernel
def test_norms_of_heads_that_lie_in_a_wider_row(kernels: str) -> None:
    heads = noise(0, 5, 200)[:, 8:104].view(5, 3, 32)
    weight = noise(1, 32)
    close(native(kernels).rms_norm(heads, weight, 1e-6, 0.0), reference.rms_norm(heads, weight, 1e-6, 0.0))


@every_kernel
@pytest.mark.parametrize("turning", [32, 16, 6])
def test_rotation(kernels: str, turning: int) -> None:
    x, angles = noise(0, 5, 3, 32), noise(1, 5, turning)
    close(native(kernels).rotate(x, angles), reference.rotate(x, angles))


@every_kernel
@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_tanh", "relu"])
@pytest.mark.parametrize("gated", [True, False])
def test_activation(kernels: str, activation: str, gated: bool) -> None:
    x = torch.cat((noise(0, 4, 34, spread=3.0), torch.linspace(-120, 120, 34)[None]))
    wanted = reference.activate(x.double(), activation, gated)  # type: ignore[arg-type]
    found = native(kernels).activate(x, activation, gated)  # type: ignore[arg-type]
    torch.testing.assert_close(found.double(), wanted, atol=2e-6, rtol=2e-6)


@every_kernel
@pytest.mark.parametrize("width", WIDTHS)
def test_sums_factors_and_caps(kernels: str, width: int) -> None:
    ops, x, y = native(kernels), noise(0, 3, width, spread=9.0), noise(1, 3, width)
    close(ops.add(x, y, 0.3), reference.add(x.double(), y.double(), 0.3))
    assert torch.equal(ops.add(x, y, 1.0), x + y)
    close(ops.scale(x, 0.7), x.double() * 0.7)
    close(ops.softcap(x, 5.0), reference.softcap(x.double(), 5.0))


@every_kernel
@pytest.mark.parametrize("broken", [torch.nan, torch.inf])
def test_what_is_no_number_is_not_hidden(kernels: str, broken: float) -> None:
    ops, x = native(kernels), noise(0, 3, 40)
    x[1, 30] = broken
    assert not ops.rms_norm(x, noise(1, 40), 1e-6, 0.0)[1, 30].isfinite()
    assert not ops.activate(x, "silu", False)[1, 30].isfinite()
    assert ops.add(x, x, 1.0)[1, 30].isnan() == torch.tensor(broken).isnan()


@pytest.mark.skipif(len(KERNELS) < 2, reason="this CPU runs one set of kernels")
def test_every_instruction_set_gives_the_same_bits() -> None:
    x, weight = noise(0, 9, 200), noise(1, 200)
    for run in (
        lambda ops: ops.rms_norm(x, weight, 1e-6, 0.0),
        lambda ops: ops.layer_norm(x, weight, weight, 1e-6),
        lambda ops: ops.activate(x, "silu", True),
        lambda ops: ops.activate(x, "gelu", True),
        lambda ops: ops.softcap(x, 3.0),
    ):
        first, *others = (run(native(kernels)) for kernels in KERNELS)
        assert all(torch.equal(other, first) for other in others)
