"""Rows by Triton kernels: as the reference makes them, joined as one by one, and the same bits wherever they lie."""

from collections.abc import Callable

import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor

from archerfish.arch.arch import Activation
from archerfish.ops.reference import layers as reference
from archerfish.ops.reference.cache import round_heads
from archerfish.ops.triton.elementwise import row_ops as rows
from archerfish.ops.triton.elementwise.quantized_rows import QuantizedRows, quantize_groups, quantize_into
from archerfish.ops.triton.elementwise.row_kernels import pairwise_sum

pytestmark = pytest.mark.each_choice

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
EIGHT_BITS = [torch.int8, torch.float8_e4m3fn]
ACTIVATIONS: list[Activation] = ["silu", "gelu", "gelu_tanh", "relu"]
WIDTHS = [1, 30, 40, 96, 1000]

every_dtype = pytest.mark.parametrize("dtype", DTYPES)
every_format = pytest.mark.parametrize("eight", EIGHT_BITS)


def noise(seed: int, *shape: int, dtype: torch.dtype, device: str, spread: float = 1.0) -> Tensor:
    made = torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * spread
    return made.to(device, dtype)


def close(found: Tensor, wanted: Tensor, units: float = 1.0) -> None:
    """Within so many units in the last place; those of 1 for what is smaller."""
    unit = torch.finfo(found.dtype).eps * units
    assert found.dtype == wanted.dtype
    torch.testing.assert_close(found.float(), wanted.float(), atol=unit, rtol=unit)


def in_wider_rows(x: Tensor) -> Tensor:
    """The same numbers, with others between the rows."""
    wider = torch.full((*x.shape[:-1], x.shape[-1] + 24), 7.0, device=x.device).to(x.dtype)
    wider[..., 8 : 8 + x.shape[-1]] = x
    return wider[..., 8 : 8 + x.shape[-1]]


def quantize_8bit(x: Tensor, eight: torch.dtype) -> tuple[Tensor, Tensor]:
    """What rounding to eight bits must give, in plain torch."""
    if eight == torch.int8:
        rounded = round_heads(x[:, None])
        return rounded.numbers[:, 0], rounded.scales[:, 0]
    wide = x.float()
    peak = wide.abs().amax(-1, keepdim=True)
    inverse = torch.full_like(peak, 448.0) / peak
    inverse[~(inverse <= 3.4e38)] = 0.0
    scales = torch.where(inverse == 0.0, 0.0, peak / torch.full_like(peak, 448.0))  # By a number, CUDA would multiply.
    spoilt = ~wide.isfinite().all(-1, keepdim=True)
    numbers = (wide * inverse).masked_fill(spoilt, 0.0).to(eight)
    return numbers, scales.masked_fill(spoilt, torch.nan)[:, 0]


def same(found: tuple[Tensor, ...], wanted: tuple[Tensor, ...]) -> None:
    for one, other in zip(found, wanted, strict=True):
        assert one.dtype == other.dtype
        assert torch.equal(one.float().nan_to_num(nan=-1e30), other.float().nan_to_num(nan=-1e30))


@every_dtype
@pytest.mark.parametrize("width", WIDTHS)
def test_sums_factors_and_caps(dtype: torch.dtype, width: int, device: str) -> None:
    x, y = (noise(seed, 3, width, dtype=dtype, device=device, spread=5.0) for seed in (0, 1))
    assert torch.equal(rows.add(x, y, 0.3), reference.add(x, y, 0.3))
    assert torch.equal(rows.add(x, y, 1.0), x + y)
    assert torch.equal(rows.scale(x, 0.7), reference.scale(x, 0.7))
    close(rows.softcap(x, 3.0), reference.softcap(x, 3.0), units=6.0)


def test_caps_keep_small_numbers(device: str) -> None:
    x = torch.tensor([[1e-30, -1e-6, 3e-3, 1.2, -1.3, 90.0, -90.0, 0.0]], device=device)
    torch.testing.assert_close(rows.softcap(x, 2.0), reference.softcap(x.double(), 2.0).float(), atol=0.0, rtol=4e-7)


@every_dtype
@pytest.mark.parametrize("index", [torch.int32, torch.int64])
def test_embeddings(dtype: torch.dtype, index: torch.dtype, device: str) -> None:
    table = noise(0, 20, 1100, dtype=dtype, device=device)
    tokens = torch.tensor([3, 19, 0, 3], device=device, dtype=index)
    assert torch.equal(rows.embed(tokens, table), table[tokens])
    out = torch.empty(4, 1100, dtype=dtype, device=device)
    rows.embed_into(out, tokens, table, 33.9)
    assert torch.equal(out, reference.scale(table[tokens], 33.9))


@every_dtype
@pytest.mark.parametrize("width", WIDTHS)
def test_norms(dtype: torch.dtype, width: int, device: str) -> None:
    x = noise(0, 2, 3, width, dtype=dtype, device=device) + 1
    weight, bias = noise(1, width, dtype=dtype, device=device), noise(2, width, dtype=dtype, device=device)
    close(rows.rms_norm(x, weight, 1e-6, 1.0), reference.rms_norm(x, weight, 1e-6, 1.0), units=4.0)
    close(rows.layer_norm(x, weight, bias, 1e-2), reference.layer_norm(x, weight, bias, 1e-2), units=4.0)


@every_dtype
@pytest.mark.parametrize("turning", [32, 16, 6])
@pytest.mark.parametrize("heads", [1, 5])
def test_rotation(dtype: torch.dtype, turning: int, heads: int, device: str) -> None:
    x = noise(0, 3, heads, 32, dtype=dtype, device=device)
    angles = noise(1, 3, turning, dtype=torch.float32, device=device)
    wanted = reference.rotate(x, angles)
    assert torch.equal(rows.rotate(x, angles), wanted)
    lying_apart = in_wider_rows(x.flatten(1)).view(3, heads, 32)
    assert torch.equal(rows.rotate(lying_apart, angles), wanted)
    rows.rotate_into(lying_apart, lying_apart, angles)
    assert torch.equal(lying_apart, wanted)


@every_dtype
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("gated", [True, False])
def test_activation(dtype: torch.dtype, activation: Activation, gated: bool, device: str) -> None:
    far = torch.linspace(-120, 120, 48, device=device)[None]
    gate = torch.cat((noise(0, 4, 48, dtype=torch.float32, device=device, spread=3.0), far))
    up = noise(1, 5, 48, dtype=torch.float32, device=device)
    x = torch.cat((gate, up), dim=-1).to(dtype)
    # In float32 the reference has the errors of some library's functions itself.
    wanted = reference.activate(x.double() if dtype == torch.float32 else x, activation, gated).to(dtype)
    close(rows.activate(x, activation, gated), wanted, units=6.0)


@every_format
@every_dtype
@pytest.mark.parametrize("width", [1, 30, 40, 1000])
def test_eight_bits(eight: torch.dtype, dtype: torch.dtype, width: int, device: str) -> None:
    x = noise(0, 6, width, dtype=dtype, device=device, spread=4.0)
    x[1] = 0.0
    x[2, width // 2] = torch.nan
    x[3, -1] = -torch.inf
    x[4] = 6e-8  # With width numbers all of one size, and the smallest that float16 has.
    same(quantized(x, eight), quantize_8bit(x, eight))


@every_format
def test_eight_bits_of_every_size(eight: torch.dtype, device: str) -> None:
    """Ties, subnormal numbers and carries, one after the other."""
    x = torch.linspace(-448.0, 448.0, 7169, device=device)[None] * torch.tensor([[1.0], [0.001]], device=device)
    x[:, 0] = 448.0
    same(quantized(x, eight), quantize_8bit(x, eight))


@every_format
@every_dtype
@pytest.mark.parametrize("width", [30, 40, 1000])
def test_joined_operations_give_the_bits_of_one_after_the_other(
    eight: torch.dtype, dtype: torch.dtype, width: int, device: str
) -> None:
    x, y = (noise(seed, 3, width, dtype=dtype, device=device, spread=2.0) for seed in (0, 1))
    weight = noise(2, width, dtype=dtype, device=device)
    total = rows.add(x, y, 0.3)
    normed = rows.rms_norm(total, weight, 1e-6, 1.0)
    out, left = torch.empty_like(x), torch.empty_like(x)
    rows.add_rms_norm_into(out, left, x, y, 0.3, weight, 1e-6, 1.0)
    same((out, left), (normed, total))

    wanted, found = quantized(normed, eight), empty_quantized(normed, eight)
    rows.rms_norm_quantized_into(found, total, weight, 1e-6, 1.0)
    same(parts(found), wanted)
    found = empty_quantized(normed, eight)
    rows.add_rms_norm_quantized_into(found, x, x, y, 0.3, weight, 1e-6, 1.0)
    same((*parts(found), x), (*wanted, total))


@every_dtype
@pytest.mark.parametrize(("width", "group"), [(32, 32), (192, 64), (384, 128)])
def test_norms_rounded_by_group_have_the_bits_of_one_after_the_other(
    dtype: torch.dtype, width: int, group: int, device: str
) -> None:
    x, y = (noise(seed, 3, width, dtype=dtype, device=device, spread=2.0) for seed in (0, 1))
    x[1, 5] = torch.inf
    weight = noise(2, width, dtype=dtype, device=device)
    total = rows.add(x, y, 0.3)
    wanted = quantize_groups(rows.rms_norm(total, weight, 1e-6, 1.0), group)
    found = QuantizedRows.empty(3, width, group, torch.int8, x.device)
    rows.rms_norm_quantized_into(found, total, weight, 1e-6, 1.0)
    same(group_parts(found), group_parts(wanted))
    found = QuantizedRows.empty(3, width, group, torch.int8, x.device)
    rows.add_rms_norm_quantized_into(found, x, x, y, 0.3, weight, 1e-6, 1.0)
    same((*group_parts(found), x), (*group_parts(wanted), total))


def group_parts(made: QuantizedRows) -> tuple[Tensor, Tensor, Tensor]:
    """Without what fills up rows."""
    assert made.sums is not None
    return made.data, made.scales[:, : len(made.data)], made.sums[:, : len(made.data)]


def parts(made: QuantizedRows) -> tuple[Tensor, Tensor]:
    return made.data, made.scales[0]


def quantized(x: Tensor, eight: torch.dtype) -> tuple[Tensor, Tensor]:
    made = empty_quantized(x, eight)
    quantize_into(made, x)
    return parts(made)


def empty_quantized(x: Tensor, eight: torch.dtype) -> QuantizedRows:
    return QuantizedRows.empty(*x.shape, x.shape[1], eight, x.device)


def over_rows(dtype: torch.dtype, device: str, width: int) -> list[Callable[[Tensor], Tensor]]:
    weight = noise(1, width, dtype=dtype, device=device)
    return [
        lambda x: rows.add(x, x, 0.3),
        lambda x: rows.scale(x, 0.7),
        lambda x: rows.softcap(x, 2.0),
        lambda x: rows.rms_norm(x, weight, 1e-6, 0.0),
        lambda x: rows.layer_norm(x, weight, weight, 1e-6),
        lambda x: rows.activate(x, "gelu", False),
        lambda x: rows.activate(x, "silu", True),
        lambda x: quantized(x, torch.int8)[1][:, None],
    ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("width", [30, 48, 1200])
def test_a_row_has_the_same_bits_in_every_batch_and_wherever_it_lies(
    dtype: torch.dtype, width: int, device: str
) -> None:
    x = noise(0, 5, width, dtype=dtype, device=device)
    for run in over_rows(dtype, device, width):
        whole = run(x)
        for count in (1, 3):
            assert torch.equal(run(x[5 - count :]), whole[5 - count :])
        assert torch.equal(run(in_wider_rows(x)), whole)


@triton.jit
def sums_kernel(out, x, ROWS: tl.constexpr, WIDTH: tl.constexpr):  # noqa: N803
    if ROWS == 1:
        tl.store(out, pairwise_sum(tl.load(x + tl.arange(0, WIDTH))))
    else:
        rows = tl.arange(0, ROWS)
        tl.store(out + rows, pairwise_sum(tl.load(x + rows[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :])))


@pytest.mark.parametrize("num_warps", [1, 4, 8])
@pytest.mark.parametrize("width", [16, 256, 2048])
def test_a_sum_has_the_order_of_its_columns_however_a_kernel_holds_them(
    width: int, num_warps: int, device: str
) -> None:
    x = torch.rand((8, width), generator=torch.Generator().manual_seed(width)).float()
    wanted = x
    while wanted.shape[1] > 1:
        wanted = wanted[:, ::2] + wanted[:, 1::2]
    for num_rows in (1, 8):
        found = torch.empty(num_rows, dtype=torch.float32, device=device)
        sums_kernel[(1,)](found, x.to(device), num_rows, width, num_warps=num_warps)
        assert torch.equal(found.cpu(), wanted[:num_rows, 0])


def test_no_rows_at_all(device: str) -> None:
    for run in over_rows(torch.bfloat16, device, 32):
        assert len(run(torch.empty(0, 32, dtype=torch.bfloat16, device=device))) == 0


@pytest.mark.parametrize("broken", [torch.nan, torch.inf])
def test_what_is_no_number_is_not_hidden(broken: float, device: str) -> None:
    x = noise(0, 3, 40, dtype=torch.bfloat16, device=device)
    x[1, 30] = broken
    for run in over_rows(torch.bfloat16, device, 40)[3:5]:
        assert not run(x)[1, 30].isfinite()
        assert run(x)[[0, 2]].isfinite().all()
    assert rows.activate(x, "relu", False)[1, 30].isnan() == torch.tensor(broken).isnan()


def test_rows_that_do_not_start_where_their_width_says_are_refused(device: str) -> None:
    x = noise(0, 4, 41, dtype=torch.bfloat16, device=device)[:, 1:]
    with pytest.raises(AssertionError, match="16 bytes"):
        rows.rms_norm(x, noise(1, 40, dtype=torch.bfloat16, device=device), 1e-6, 0.0)
