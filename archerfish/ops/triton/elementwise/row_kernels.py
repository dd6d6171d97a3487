"""Elementwise and row-reduction kernels, on pointers and strides; `row_ops` calls them with tensors.

How a row is computed depends on its width alone, not on the number of rows or on alignment. Strides are passed in units
of VECTOR numbers and are never specialized on: what the compiler knows of alignment, and with it the order of a sum,
follows from the width. All are compiled without fused multiply-adds, so that fused operations round as separate ones
do.
"""

import triton
import triton.language as tl

from archerfish.ops.triton.runtime import INTERPRETED, pdl_trigger, pdl_wait

_ROUND_FIRST: tl.constexpr = tl.constexpr(INTERPRETED)
_LARGEST: tl.constexpr = tl.constexpr(3.4028234663852886e38)
_LARGEST_INVERSE: tl.constexpr = tl.constexpr(3.4e38)


@triton.jit
def round_to(x, DTYPE: tl.constexpr):
    """Round float32 to the nearest number of a narrower dtype, ties to even."""
    if _ROUND_FIRST:  # The interpreter truncates or rounds wrongly; it converts numbers exactly that need no rounding.
        if DTYPE.is_bf16():
            x = _round_bits(x, 16)
        elif DTYPE.is_fp8e4nv():
            magic: tl.constexpr = 24576.0  # 1.5 * 2 ** 14: sums with it are multiples of 2 ** -9, the smallest number.
            x = tl.where(tl.abs(x) < 2.0**-6, (x + magic) - magic, _round_bits(x, 20))
    return x.to(DTYPE)


@triton.jit
def _round_bits(x, DROPPED: tl.constexpr):
    bits = x.to(tl.uint32, bitcast=True)
    bits += (1 << (DROPPED - 1)) - 1 + ((bits >> DROPPED) & 1)
    return tl.where(x == x, ((bits >> DROPPED) << DROPPED).to(tl.float32, bitcast=True), x)


@triton.jit
def row_of(pointer, row, outer, inner, NUM_INNER: tl.constexpr, VECTOR: tl.constexpr):
    """Return a pointer to the start of a row; rows are counted through the inner dimension first."""
    offset = (row // NUM_INNER).to(tl.int64) * outer + (row % NUM_INNER).to(tl.int64) * inner
    return pointer + offset * VECTOR


# -- number by number -------------------------------------------------------------------------------------------------


@triton.jit(do_not_specialize=["out_stride", "table_stride"])
def embed_kernel(
    out, tokens, table, out_stride, table_stride, factor,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, VECTOR: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    pdl_trigger(PDL)
    row = tl.program_id(0)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < WIDTH
    pdl_wait(PDL)
    token = tl.load(tokens + row)
    x = tl.load(row_of(table, token, table_stride, 0, 1, VECTOR) + columns, mask=inside).to(tl.float32)
    tl.store(
        row_of(out, row, out_stride, 0, 1, VECTOR) + columns, round_to(x * factor, out.dtype.element_ty), mask=inside
    )


@triton.jit
def add_rounded(x, y, factor, DTYPE: tl.constexpr):
    """Return x + y * factor, rounded after each operation."""
    return round_to(x + round_to(y * factor, DTYPE).to(tl.float32), DTYPE)


@triton.jit(do_not_specialize=["out_stride", "x_stride", "y_stride"])
def add_kernel(
    out, x, y, out_stride, x_stride, y_stride, factor,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, VECTOR: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    pdl_trigger(PDL)
    row = tl.program_id(0)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < WIDTH
    pdl_wait(PDL)
    left = tl.load(row_of(x, row, x_stride, 0, 1, VECTOR) + columns, mask=inside).to(tl.float32)
    right = tl.load(row_of(y, row, y_stride, 0, 1, VECTOR) + columns, mask=inside).to(tl.float32)
    total = add_rounded(left, right, factor, out.dtype.element_ty)
    tl.store(row_of(out, row, out_stride, 0, 1, VECTOR) + columns, total, mask=inside)


@triton.jit(do_not_specialize=["out_stride", "x_stride"])
def scale_kernel(
    out, x, out_stride, x_stride, number,
    CAPS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, VECTOR: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Multiply by a number, or with CAPS squash between it and its negative."""
    pdl_trigger(PDL)
    row = tl.program_id(0)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < WIDTH
    pdl_wait(PDL)
    values = tl.load(row_of(x, row, x_stride, 0, 1, VECTOR) + columns, mask=inside, other=0.0).to(tl.float32)
    dtype: tl.constexpr = out.dtype.element_ty
    if CAPS:
        values = round_to(tl.div_rn(values, number), dtype).to(tl.float32)
        values = round_to(tanh(values), dtype).to(tl.float32)
    tl.store(row_of(out, row, out_stride, 0, 1, VECTOR) + columns, round_to(values * number, dtype), mask=inside)


@triton.jit
def tanh(x):
    """Compute tanh, by an odd polynomial around 0, where 1 - 2 / (exp + 1) would lose every digit."""
    square = x * x
    series = -5.70498872745e-3 * square + 2.06390887954e-2
    series = series * square - 5.37397155531e-2
    series = series * square + 1.33314422036e-1
    series = series * square - 3.33332819422e-1
    far = 1.0 - 2.0 / (tl.exp(2.0 * tl.abs(x)) + 1.0)
    return tl.where(tl.abs(x) < 0.625, series * square * x + x, tl.where(x < 0.0, -far, far))


@triton.jit
def nonlinear(x, ACTIVATION: tl.constexpr):
    if ACTIVATION == "silu":
        return x / (1.0 + tl.exp(-x))
    elif ACTIVATION == "gelu":  # noqa: RET505  (a return ends a branch here, not the compilation)
        return 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))
    elif ACTIVATION == "gelu_tanh":
        inner = 0.7978845608028654 * (x + 0.044715 * x * x * x)
        return x / (1.0 + tl.exp(-2.0 * inner))  # 0.5 * (1 + tanh), without the difference of two numbers near 1.
    else:
        tl.static_assert(ACTIVATION == "relu")
        return tl.where(x < 0.0, 0.0, x)


@triton.jit
def activated(x, columns, ACTIVATION: tl.constexpr, GATED: tl.constexpr, WIDTH: tl.constexpr):
    """Apply an activation to some columns of a row, in the dtype of the row; 0 outside of it."""
    dtype: tl.constexpr = x.dtype.element_ty
    inside = columns < WIDTH
    result = round_to(nonlinear(tl.load(x + columns, mask=inside, other=0.0).to(tl.float32), ACTIVATION), dtype)
    if GATED:
        up = tl.load(x + WIDTH + columns, mask=inside, other=0.0).to(tl.float32)
        result = round_to(result.to(tl.float32) * up, dtype)
    return result


@triton.jit(do_not_specialize=["out_stride", "x_stride"])
def activate_kernel(
    out, x, out_stride, x_stride,
    ACTIVATION: tl.constexpr, GATED: tl.constexpr,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, VECTOR: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    pdl_trigger(PDL)
    row = tl.program_id(0)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    pdl_wait(PDL)
    result = activated(row_of(x, row, x_stride, 0, 1, VECTOR), columns, ACTIVATION, GATED, WIDTH)
    tl.store(row_of(out, row, out_stride, 0, 1, VECTOR) + columns, result, mask=columns < WIDTH)


@triton.jit(do_not_specialize=["out_outer", "out_inner", "x_outer", "x_inner", "angle_stride"])
def rotate_kernel(
    out, x, angles, out_outer, out_inner, x_outer, x_inner, angle_stride,
    NUM_HEADS: tl.constexpr, WIDTH: tl.constexpr, HALF: tl.constexpr,
    HEADS: tl.constexpr, BLOCK: tl.constexpr, VECTOR: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Rotate some heads of a token. out may be x."""
    pdl_trigger(PDL)
    token = tl.program_id(0).to(tl.int64)
    heads = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    columns = tl.arange(0, BLOCK)
    pdl_wait(PDL)
    source = x + (token * x_outer + heads.to(tl.int64) * x_inner)[:, None] * VECTOR + columns[None, :]
    target = out + (token * out_outer + heads.to(tl.int64) * out_inner)[:, None] * VECTOR + columns[None, :]
    rotated = (heads < NUM_HEADS)[:, None] & (columns < HALF)[None, :]
    angle = angles + token * angle_stride * VECTOR + columns
    cos = tl.load(angle, mask=columns < HALF, other=0.0).to(tl.float32)[None, :]
    sin = tl.load(angle + HALF, mask=columns < HALF, other=0.0).to(tl.float32)[None, :]
    first = tl.load(source, mask=rotated, other=0.0).to(tl.float32)
    second = tl.load(source + HALF, mask=rotated, other=0.0).to(tl.float32)
    dtype: tl.constexpr = out.dtype.element_ty
    tl.debug_barrier()  # In offset, nothing may be written before everything was read.
    tl.store(target, round_to(first * cos - second * sin, dtype), mask=rotated)
    tl.store(target + HALF, round_to(second * cos + first * sin, dtype), mask=rotated)
    for start in tl.static_range(2 * HALF, WIDTH, BLOCK):
        rest = (heads < NUM_HEADS)[:, None] & (columns < WIDTH - start)[None, :]
        tl.store(target + start, tl.load(source + start, mask=rest), mask=rest)


# -- norms ------------------------------------------------------------------------------------------------------------


@triton.constexpr_function
def _num_halvings(width):
    """Return how often a power of two can be halved."""
    return width.bit_length() - 1


@triton.jit
def pairwise_sum(x):
    """Sum the last dimension, a power of two, in pairs: neighbours first, then neighbouring sums, and so on.

    A sum of two numbers has no order: so the result depends on the columns alone, not on the layout in registers, and
    an aligned stretch of columns can be summed by itself.
    """
    for _ in tl.static_range(_num_halvings(x.shape[-1])):
        if len(x.shape) == 1 and x.shape[0] == 32:
            # tl.split moves sums into one warp: the remaining ones need not cross warps each time.
            even, odd = tl.split(tl.reshape(x, (16, 2)))
            x = even + odd
        elif len(x.shape) == 1:
            x = tl.sum(tl.reshape(x, (x.shape[0] // 2, 2)), 1)
        else:
            x = tl.sum(tl.reshape(x, (x.shape[0], x.shape[1] // 2, 2)), 2)
    return tl.reshape(x, x.shape[:-1]) if len(x.shape) > 1 else tl.sum(x, 0)


@triton.jit
def inverse_rms(squares, eps, WIDTH: tl.constexpr):
    """Return the factor that scales a row to a root mean square of 1, from the sum of its squares."""
    return tl.rsqrt(squares / WIDTH + eps)


@triton.jit
def parameters(pointer, columns, WIDTH: tl.constexpr, VECTOR: tl.constexpr):
    """Load parameters of a norm, aligned as rows are: otherwise their layout might decide the order of a row's sum."""
    bytes_at_once: tl.constexpr = 16 if VECTOR > 1 else 1
    return tl.load(tl.multiple_of(pointer + columns, bytes_at_once), mask=columns < WIDTH, other=0.0).to(tl.float32)


@triton.jit(
    do_not_specialize=["out_outer", "out_inner", "x_outer", "x_inner", "y_stride", "total_stride", "scale_stride"],
    do_not_specialize_on_alignment=["weight"],
)
def rms_norm_kernel(
    out, scales, sums, total, x, y, weight,
    out_outer, out_inner, x_outer, x_inner, y_stride, total_stride, scale_stride,
    factor, eps, weight_offset,
    GROUP: tl.constexpr, NUM_INNER: tl.constexpr,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, VECTOR: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Normalize one row: with y, the sum of x and y, which is stored in total; with scales, quantized to eight bits."""
    pdl_trigger(PDL)
    row = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    inside = columns < WIDTH
    dtype: tl.constexpr = x.dtype.element_ty
    weights = parameters(weight, columns, WIDTH, VECTOR) + weight_offset
    pdl_wait(PDL)
    values = tl.load(row_of(x, row, x_outer, x_inner, NUM_INNER, VECTOR) + columns, mask=inside, other=0.0)
    if y is not None:
        right = tl.load(row_of(y, row, y_stride, 0, 1, VECTOR) + columns, mask=inside, other=0.0).to(tl.float32)
        values = add_rounded(values.to(tl.float32), right, factor, dtype)
        tl.store(row_of(total, row, total_stride, 0, 1, VECTOR) + columns, values, mask=inside)
    wide = values.to(tl.float32)
    normed = round_to(wide * inverse_rms(pairwise_sum(wide * wide), eps, WIDTH) * weights, dtype)
    target = row_of(out, row, out_outer, out_inner, NUM_INNER, VECTOR)
    if scales is None:
        tl.store(target + columns, normed, mask=inside)
    elif sums is not None:
        values = tl.reshape(normed.to(tl.float32), (BLOCK // GROUP, GROUP))
        groups = tl.arange(0, BLOCK // GROUP)
        store_groups(target, scales + row, sums + row, values, groups, WIDTH // GROUP, scale_stride)
    else:
        peak = tl.max(magnitude(tl.where(inside, normed.to(tl.float32), 0.0)), 0)
        tl.store(target + columns, quantize_8bit(normed.to(tl.float32), peak, out.dtype.element_ty), mask=inside)
        tl.store(scales + row, scale_of(peak, out.dtype.element_ty))


@triton.jit(
    do_not_specialize=["out_outer", "out_inner", "x_outer", "x_inner"],
    do_not_specialize_on_alignment=["weight", "bias"],
)
def layer_norm_kernel(
    out, x, weight, bias, out_outer, out_inner, x_outer, x_inner, eps,
    NUM_INNER: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, VECTOR: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    pdl_trigger(PDL)
    row = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    inside = columns < WIDTH
    weights = parameters(weight, columns, WIDTH, VECTOR)
    biases = parameters(bias, columns, WIDTH, VECTOR)
    pdl_wait(PDL)
    source = row_of(x, row, x_outer, x_inner, NUM_INNER, VECTOR) + columns
    values = tl.load(source, mask=inside, other=0.0).to(tl.float32)
    centred = tl.where(inside, values - tl.sum(values, 0) / WIDTH, 0.0)
    variance = tl.sum(centred * centred, 0) / WIDTH
    normed = centred * tl.rsqrt(variance + eps) * weights + biases
    target = row_of(out, row, out_outer, out_inner, NUM_INNER, VECTOR) + columns
    tl.store(target, round_to(normed, out.dtype.element_ty), mask=inside)


# -- eight bits -------------------------------------------------------------------------------------------------------


@triton.jit
def magnitude(x):
    """Return the absolute value, and infinity for numbers that are not finite."""
    size = tl.abs(x)
    return tl.where(size <= _LARGEST, size, float("inf"))


@triton.jit
def inverse_of(peak, DTYPE: tl.constexpr):
    """Return the factor that quantizes rows: 0 where numbers are too small to represent, or not finite."""
    most: tl.constexpr = 127.0 if DTYPE.is_int8() else 448.0
    inverse = tl.div_rn(most + peak * 0.0, peak)
    return tl.where(inverse <= _LARGEST_INVERSE, inverse, 0.0)


@triton.jit
def scale_of(peak, DTYPE: tl.constexpr):
    """Return the value of a 1 in a row with this largest magnitude; NaN, if the row has a number that is not finite."""
    most: tl.constexpr = 127.0 if DTYPE.is_int8() else 448.0
    scale = tl.where(inverse_of(peak, DTYPE) == 0.0, 0.0, tl.div_rn(peak, most))
    return tl.where(peak <= _LARGEST, scale, float("nan"))


@triton.jit
def quantize_8bit(x, peak, DTYPE: tl.constexpr):
    return round_to_8bit(tl.where(peak <= _LARGEST, x * inverse_of(peak, DTYPE), 0.0), DTYPE)


@triton.jit
def round_to_8bit(x, DTYPE: tl.constexpr):
    """Round to the nearest number of eight bits, ties to even."""
    if DTYPE.is_int8():
        magic: tl.constexpr = 12582912.0  # 1.5 * 2 ** 23: sums with it are integers, in their last byte.
        return (x + magic).to(tl.int32, bitcast=True).to(tl.int8)
    else:  # noqa: RET505
        return round_to(x, DTYPE)


@triton.jit
def store_groups(out, scales, sums, values, groups, num_groups, scale_stride):
    """Store some groups [groups, numbers of each] of a row, each quantized by its own largest number."""
    inside = groups < num_groups
    peaks = tl.max(magnitude(values), 1)
    rounded = quantize_8bit(values, peaks[:, None], tl.int8)
    columns = groups[:, None] * values.shape[1] + tl.arange(0, values.shape[1])[None, :]
    tl.store(out + columns, rounded, mask=inside[:, None])
    tl.store(scales + groups * scale_stride, scale_of(peaks, tl.int8), mask=inside)
    tl.store(sums + groups * scale_stride, tl.sum(rounded.to(tl.int32), 1), mask=inside)


@triton.jit(do_not_specialize=["out_stride", "x_stride"])
def quantize_kernel(
    out, scales, x, out_stride, x_stride,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, VECTOR: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Quantize a row with one scale. Rows too wide for registers are read twice."""
    pdl_trigger(PDL)
    row = tl.program_id(0)
    source = row_of(x, row, x_stride, 0, 1, VECTOR)
    target = row_of(out, row, out_stride, 0, 1, VECTOR)
    pdl_wait(PDL)
    largest = tl.zeros([BLOCK], tl.float32)
    for start in tl.static_range(0, WIDTH, BLOCK):
        largest = tl.maximum(largest, magnitude(_part_of(source, start, WIDTH, BLOCK)))
    peak = tl.max(largest, 0)
    for start in tl.static_range(0, WIDTH, BLOCK):
        values = _part_of(source, start, WIDTH, BLOCK)
        columns = start + tl.arange(0, BLOCK)
        tl.store(target + columns, quantize_8bit(values, peak, out.dtype.element_ty), mask=columns < WIDTH)
    tl.store(scales + row, scale_of(peak, out.dtype.element_ty))


@triton.jit
def _part_of(x, start, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    columns = start + tl.arange(0, BLOCK)
    return tl.load(x + columns, mask=columns < WIDTH, other=0.0).to(tl.float32)
