"""Normalizes and rotates heads and stores keys and values in the cache.

Owns the layout of a block, [G, B, D] whatever the tensor's shape says: a head's tokens are contiguous, as attention
walks them.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from archerfish.ops.signatures import LayerCache
from archerfish.ops.triton.elementwise import inverse_rms, pairwise_sum
from archerfish.ops.triton.runtime import launch, pdl_trigger, pdl_wait

_NUMBERS_PER_PROGRAM = 1024


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class QkNormRope:
    """What is done to the heads of queries and keys before they are multiplied."""

    angles: Tensor | None
    """[positions, R] float32, cosines and then sines: the first R dimensions are rotated, pairing i with i + R/2."""
    q_weight: Tensor | None
    """[D], the weight of the norm over a query's head."""
    k_weight: Tensor | None
    """[D], the weight of the norm over a key's head."""
    eps: float
    weight_offset: float
    """The norm multiplies by weight + weight_offset."""


_NOTHING = QkNormRope(angles=None, q_weight=None, k_weight=None, eps=0.0, weight_offset=0.0)


@triton.jit
def norm_rope(x, heads, is_real, angles, weight, eps, weight_offset, D: tl.constexpr, R: tl.constexpr):
    """Normalize and rotate heads [heads, D] of a token; rounded after each, as separate operations would be."""
    dims = tl.arange(0, D)
    half: tl.constexpr = R // 2
    # The other number of each pair is loaded once more, which is faster than exchanging it between threads.
    others = tl.where(dims < half, dims + half, tl.where(dims < R, dims - half, dims))
    real = is_real[:, None]
    own = tl.load(x + (heads * D)[:, None] + dims[None, :], mask=real, other=0.0).to(tl.float32)
    other = own
    if R > 0:
        other = tl.load(x + (heads * D)[:, None] + others[None, :], mask=real, other=0.0).to(tl.float32)
    if weight is not None:
        inverse = inverse_rms(pairwise_sum(own * own), eps, D)[:, None]
        factor = tl.load(weight + dims).to(tl.float32) + weight_offset
        own = (own * inverse * factor[None, :]).to(x.dtype.element_ty).to(tl.float32)
        if R > 0:
            factor = tl.load(weight + others).to(tl.float32) + weight_offset
            other = (other * inverse * factor[None, :]).to(x.dtype.element_ty).to(tl.float32)
    if R > 0:
        turns = dims < R
        cosines = tl.load(angles + dims % half, mask=turns, other=1.0)[None, :]
        sines = tl.load(angles + half + dims % half, mask=turns, other=0.0)[None, :]
        rotated = tl.where((dims < half)[None, :], own * cosines - other * sines, own * cosines + other * sines)
        own = tl.where(turns[None, :], rotated, own)
    return own.to(x.dtype.element_ty)


@triton.jit
def store_heads(
    numbers, x, heads, slot, block_stride, KV_HEADS: tl.constexpr, D: tl.constexpr, BLOCK_SIZE: tl.constexpr
):
    """Store heads [heads, D] of a token into its slot, rounded to the cache's dtype and clamped to its range."""
    if numbers.dtype.element_ty == tl.float8e4nv:
        x = x.to(tl.float32)
        x = tl.where(x > 448.0, 448.0, tl.where(x < -448.0, -448.0, x))  # NaN is neither, and stays.
    block = numbers + slot // BLOCK_SIZE * block_stride
    addresses = ((heads * BLOCK_SIZE + slot % BLOCK_SIZE) * D)[:, None] + tl.arange(0, D)[None, :]
    # Padded rows have a slot of -1.
    tl.store(block + addresses, x.to(numbers.dtype.element_ty), mask=(heads < KV_HEADS)[:, None] & (slot >= 0))


@triton.jit
def qk_norm_rope_kv_write_kernel(
    q_out,
    q_out_stride,
    q,
    q_stride,
    k,
    k_stride,
    v,
    v_stride,
    keys,
    values,
    block_stride,
    slots,
    positions,
    angles,
    angles_stride,
    q_weight,
    k_weight,
    eps,
    weight_offset,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    D: tl.constexpr,
    R: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HEADS_PER_PROGRAM: tl.constexpr,
    PDL: tl.constexpr,
):
    """Compute some heads of one token: the first programs compute queries, the next ones keys, then values."""
    pdl_trigger(PDL)
    pdl_wait(PDL)
    token = tl.program_id(0).to(tl.int64)
    q_programs: tl.constexpr = (HEADS + HEADS_PER_PROGRAM - 1) // HEADS_PER_PROGRAM
    kv_programs: tl.constexpr = (KV_HEADS + HEADS_PER_PROGRAM - 1) // HEADS_PER_PROGRAM
    program = tl.program_id(1)
    if R > 0:
        angles += tl.load(positions + token).to(tl.int64) * angles_stride
    if program < q_programs:
        if HEADS > 0:
            heads = program * HEADS_PER_PROGRAM + tl.arange(0, HEADS_PER_PROGRAM)
            x = norm_rope(q + token * q_stride, heads, heads < HEADS, angles, q_weight, eps, weight_offset, D, R)
            addresses = (heads * D)[:, None] + tl.arange(0, D)[None, :]
            tl.store(q_out + token * q_out_stride + addresses, x, mask=(heads < HEADS)[:, None])
    elif KV_HEADS > 0:
        slot = tl.load(slots + token)
        program -= q_programs
        if program < kv_programs:
            heads = program * HEADS_PER_PROGRAM + tl.arange(0, HEADS_PER_PROGRAM)
            x = norm_rope(k + token * k_stride, heads, heads < KV_HEADS, angles, k_weight, eps, weight_offset, D, R)
            store_heads(keys, x, heads, slot, block_stride, KV_HEADS, D, BLOCK_SIZE)
        else:
            heads = (program - kv_programs) * HEADS_PER_PROGRAM + tl.arange(0, HEADS_PER_PROGRAM)
            addresses = (heads * D)[:, None] + tl.arange(0, D)[None, :]
            x = tl.load(v + token * v_stride + addresses, mask=(heads < KV_HEADS)[:, None], other=0.0)
            store_heads(values, x, heads, slot, block_stride, KV_HEADS, D, BLOCK_SIZE)


def qk_norm_rope_kv_write_into(
    q_out: Tensor,
    qkv: Tensor,
    cache: LayerCache | None,
    slots: Tensor | None,
    positions: Tensor,
    steps: QkNormRope,
) -> None:
    """Split a projection's output [T, (H + 2G) * D]: queries into q_out [T, H, D], keys and values into their slots.

    Slots are int64 [T]; a slot of -1 stores nothing. A layer that reads another's keys and values has no cache here,
    and qkv is queries alone. Positions [T] are rows of the angles; a padded row needs one too.
    """
    _, num_heads, head_dim = q_out.shape
    assert q_out.stride()[1:] == (head_dim, 1), "heads of a query token must be contiguous"
    if cache is None or slots is None:
        assert cache is None and slots is None, "pass a cache together with slots in it"
        assert qkv.shape[1] == num_heads * head_dim, f"{qkv.shape[1]} numbers a token, for {num_heads} query heads"
        _launch(q_out, qkv, None, None, None, None, positions, steps)
        return
    q, k, v = qkv.split([num_heads * head_dim, *2 * [cache.keys.shape[2] * head_dim]], dim=1)
    _launch(q_out, q, k, v, cache, slots, positions, steps)


def write_kv(k: Tensor, v: Tensor, cache: LayerCache, slots: Tensor) -> None:
    _launch(None, None, k.flatten(1), v.flatten(1), cache, slots, None, _NOTHING)


def _launch(
    q_out: Tensor | None,
    q: Tensor | None,
    k: Tensor | None,
    v: Tensor | None,
    cache: LayerCache | None,
    slots: Tensor | None,
    positions: Tensor | None,
    steps: QkNormRope,
) -> None:
    """Launch for the tensors that are present: rows [T, heads * D] of queries, of keys and values, or of all three."""
    given = [x for x in (q, k, v) if x is not None]
    keys = None if cache is None else cache.keys
    head_dim = next(x.shape[-1] for x in (q_out, keys) if x is not None)
    num_heads, num_kv_heads = (0 if x is None else x.shape[1] // head_dim for x in (q, k))
    if cache is not None:
        check_cache(cache, given[0].dtype)
    angles = steps.angles
    heads_per_program = max(1, _NUMBERS_PER_PROGRAM // head_dim)
    programs = triton.cdiv(num_heads, heads_per_program) + 2 * triton.cdiv(num_kv_heads, heads_per_program)
    launch(
        qk_norm_rope_kv_write_kernel,
        (len(given[0]), programs),
        *(argument for x in (q_out, q, k, v) for argument in (x, 0 if x is None else x.stride(0))),
        *((None, None, 0) if cache is None else (cache.keys, cache.values, cache.keys.stride(0))),
        *(slots, positions, angles, 0 if angles is None else angles.stride(0)),
        *(steps.q_weight, steps.k_weight, steps.eps, steps.weight_offset),
        HEADS=num_heads,
        KV_HEADS=num_kv_heads,
        D=head_dim,
        R=0 if angles is None else angles.shape[1],
        BLOCK_SIZE=0 if cache is None else cache.keys.shape[1],
        HEADS_PER_PROGRAM=heads_per_program,
        num_warps=4,
        # With fused multiply-adds a rotation would differ in the last bit from two products and a sum.
        enable_fp_fusion=False,
    )


def copy_blocks(cache: LayerCache, sources: Tensor, targets: Tensor) -> None:
    for tensor in cache.tensors:
        numbers = tensor.view(torch.uint8)  # Not every dtype supports indexing.
        numbers[targets] = numbers[sources]


@triton.jit
def _copy_tokens_kernel(
    buffer, keys, values, block_stride, slots,
    KV_HEADS: tl.constexpr, HEADS: tl.constexpr, D: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    STORES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Copy keys and values of one token from its slot into buffer [tokens, 2, G, D] or, where it STORES, back."""
    pdl_trigger(PDL)
    pdl_wait(PDL)
    token = tl.program_id(0)
    slot = tl.load(slots + token)
    heads = tl.arange(0, HEADS)
    real = (heads < KV_HEADS)[:, None]
    dims = tl.arange(0, D)[None, :]
    addresses = slot // BLOCK_SIZE * block_stride + ((heads * BLOCK_SIZE + slot % BLOCK_SIZE) * D)[:, None] + dims
    buffer += token.to(tl.int64) * (2 * KV_HEADS * D) + (heads * D)[:, None] + dims
    if STORES:
        tl.store(keys + addresses, tl.load(buffer, mask=real), mask=real)
        tl.store(values + addresses, tl.load(buffer + KV_HEADS * D, mask=real), mask=real)
    else:
        tl.store(buffer, tl.load(keys + addresses, mask=real), mask=real)
        tl.store(buffer + KV_HEADS * D, tl.load(values + addresses, mask=real), mask=real)


def move_kv(cache: LayerCache, sources: Tensor, targets: Tensor) -> None:
    num_tokens, num_kv_heads = len(sources), cache.keys.shape[2]
    if not num_tokens:
        return
    keys, values = (
        tensor.view(torch.uint8) for tensor in (cache.keys, cache.values)
    )  # As bytes, so that no number changes its dtype.
    num_bytes = keys.shape[3]
    buffer = torch.empty((num_tokens, 2, num_kv_heads, num_bytes), dtype=torch.uint8, device=keys.device)
    for slots, stores in ((sources, False), (targets, True)):
        launch(
            _copy_tokens_kernel,
            (num_tokens,),
            *(buffer, keys, values, keys.stride(0), slots),
            KV_HEADS=num_kv_heads,
            HEADS=triton.next_power_of_2(num_kv_heads),
            D=num_bytes,
            BLOCK_SIZE=keys.shape[1],
            STORES=stores,
            num_warps=4,
        )


def check_cache(cache: LayerCache, dtype: torch.dtype) -> None:
    """Assert that these kernels can read and write a cache."""
    assert cache.key_scales is None, "these kernels do not support a cache with scales (int8): use bfloat16 or float8"
    known = (dtype, torch.float8_e4m3fn)
    assert cache.keys.dtype in known, f"a cache of {cache.keys.dtype} for a model in {dtype}: use one of {known}"
    for tensor in (cache.keys, cache.values):
        num_kv_heads, head_dim = tensor.shape[2:]
        inside = (num_kv_heads * head_dim, head_dim, 1)
        assert tensor.stride()[1:] == inside, (
            f"a block must be contiguous with strides {inside}, not {tensor.stride()[1:]}"
        )
    assert cache.keys.stride(0) == cache.values.stride(0), "keys and values must have the same strides"
