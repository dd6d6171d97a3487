"""Feed-forward experts: every token is computed by a few of them.

Pairs of a token and an expert are grouped into tiles, so that an expert's matrices are read once for all of them. Other
tokens of the step decide which tile a pair is in and how large tiles are, and nothing about its numbers: GEMMs sum K in
one order whatever the tile, and a token's rows are added in the order of its experts.

Gate and up, the activation, its product with up, and each expert's row are rounded to the dtype of x, as separate
operations would round them. The weighted sum of a token's rows is computed in float32 and rounded once.
"""

from dataclasses import dataclass
from typing import Self

import torch
import triton
import triton.language as tl
from torch import Tensor

from archerfish.arch.arch import Activation
from archerfish.ops.triton.device_weight import DeviceExperts
from archerfish.ops.triton.elementwise import round_to
from archerfish.ops.triton.gemm import quantize_for
from archerfish.ops.triton.moe.expert_tiles import TiledPairs, pairs_of_program, store_pairs
from archerfish.ops.triton.moe.quantized_moe import quantized_multiply_into, tiles_for
from archerfish.ops.triton.moe.router import MOST_EXPERTS
from archerfish.ops.triton.runtime import dot, launch, pdl_trigger, pdl_wait

Matrices = Tensor | DeviceExperts
"""Matrices [experts, outputs, inputs]."""

_COMBINED = 1024  # Columns of a token that a program adds up.


@dataclass(frozen=True, slots=True)
class MoeTiling:
    """How much a program multiplies. It changes the time of a GEMM, not its result."""

    num_rows: int
    """Most pairs of a tile."""
    num_weight_rows: int
    """Rows of an expert's matrix: as many outputs, or half as many with gate and up."""
    depth: int
    """Inputs of one step."""
    num_warps: int
    num_stages: int


# Few pairs are bound by memory: small programs, several of them on a multiprocessor, with many loads in flight.
_LONELY = MoeTiling(num_rows=8, num_weight_rows=32, depth=128, num_warps=1, num_stages=6)
_SPARSE = MoeTiling(num_rows=16, num_weight_rows=32, depth=128, num_warps=1, num_stages=6)
_DENSE = MoeTiling(num_rows=64, num_weight_rows=128, depth=64, num_warps=4, num_stages=4)
_CROWDED = MoeTiling(num_rows=128, num_weight_rows=256, depth=64, num_warps=8, num_stages=4)


def tiling_for(num_tokens: int, num_chosen: int, num_experts: int) -> MoeTiling:
    """Return a tiling for the average pairs of an expert: the actual numbers are known on the device alone."""
    average = num_tokens * num_chosen / num_experts
    if num_tokens <= _LONELY.num_rows:  # No expert gets more pairs than tokens: a token chooses different ones.
        return _LONELY
    if average <= 8:
        return _SPARSE
    return _DENSE if average <= 96 else _CROWDED


@dataclass(frozen=True, slots=True, eq=False)
class Workspace:
    """Buffers between the kernels. One for many tokens serves fewer as well."""

    inner: Tensor
    """[pairs, I] activations."""
    rows: Tensor
    """[pairs, hidden] outputs of the experts."""
    order: Tensor
    """[pairs] int32, `TiledPairs.order`."""
    tiles: Tensor
    """[pairs, 3] int32, `TiledPairs.tiles`."""

    @classmethod
    def for_pairs(cls, num_pairs: int, down: Matrices) -> Self:
        _, hidden, size = down.shape
        return cls(
            inner=torch.empty((num_pairs, size), dtype=down.dtype, device=down.device),
            rows=torch.empty((num_pairs, hidden), dtype=down.dtype, device=down.device),
            order=torch.empty(num_pairs, dtype=torch.int32, device=down.device),
            tiles=torch.empty((num_pairs, 3), dtype=torch.int32, device=down.device),
        )

    def tiled(self, chosen: Tensor, num_experts: int, num_rows: int) -> TiledPairs:
        """Group pairs into tiles of at most num_rows."""
        tiled = TiledPairs(chosen, self.order, self.tiles, num_experts, num_rows)
        tiled.sort()
        return tiled


def why_not_experts(dtype: torch.dtype, hidden: int, size: int, num_experts: int) -> str | None:
    """Return the reason why these kernels cannot run such experts, or None."""
    if dtype not in (torch.bfloat16, torch.float16):
        return f"they support bfloat16 and float16, not {str(dtype).removeprefix('torch.')}"
    if hidden % 16:
        return f"a hidden size of {hidden} is not a multiple of 16"
    if size % 16:
        return f"an expert size of {size} is not a multiple of 16"
    if num_experts > MOST_EXPERTS:
        return f"{num_experts} experts are more than {MOST_EXPERTS}"
    return None


def experts(
    x: Tensor, gate_up: Matrices, down: Matrices, chosen: Tensor, weights: Tensor, activation: Activation
) -> Tensor:
    out, workspace = torch.empty_like(x), Workspace.for_pairs(chosen.numel(), down)
    # The first columns of a sort have wider rows.
    experts_into(out, x, gate_up, down, chosen.contiguous(), weights.contiguous(), activation, workspace)
    return out


def experts_into(
    out: Tensor,
    x: Tensor,
    gate_up: Matrices,
    down: Matrices,
    chosen: Tensor,
    weights: Tensor,
    activation: Activation,
    workspace: Workspace,
) -> None:
    """Compute experts into out. Tensors are contiguous; chosen is int32 or int64 and in range."""
    num_experts, hidden, size = down.shape
    num_tokens, num_chosen = chosen.shape
    reason = why_not_experts(x.dtype, hidden, size, num_experts)
    assert reason is None, reason
    assert x.dtype == gate_up.dtype == down.dtype == out.dtype and weights.dtype == torch.float32
    assert all(tensor.is_contiguous() for tensor in (out, x, chosen, weights))
    assert gate_up.shape == (num_experts, 2 * size, hidden) and len(workspace.order) >= chosen.numel()
    if num_tokens == 0:
        return
    if isinstance(gate_up, DeviceExperts):
        assert isinstance(down, DeviceExperts), "both matrices of an expert must have the same format"
        _multiply_few_bits(x, gate_up, down, chosen, activation, workspace)
    else:
        assert isinstance(down, Tensor), "both matrices of an expert must have the same format"
        tiling = tiling_for(num_tokens, num_chosen, num_experts)
        tiled = workspace.tiled(chosen, num_experts, tiling.num_rows)
        _multiply(workspace.inner, x, gate_up, tiled, tiling, activation)
        _multiply(workspace.rows, workspace.inner, down, tiled, tiling, None)
    block = min(_COMBINED, triton.next_power_of_2(hidden))
    grid = (num_tokens, triton.cdiv(hidden, block))
    launch(
        combine_kernel, grid, out, workspace.rows, weights,
        NUM_CHOSEN=num_chosen, HIDDEN=hidden, BLOCK=block, num_warps=4,
    )  # fmt: skip


def _multiply_few_bits(
    x: Tensor, gate_up: DeviceExperts, down: DeviceExperts, chosen: Tensor, activation: Activation, workspace: Workspace
) -> None:
    tiles = tiles_for(gate_up, down, *chosen.shape)
    tiled = workspace.tiled(chosen, gate_up.num_experts, tiles.num_rows)
    inner = workspace.inner[: tiled.num_pairs]
    quantized_multiply_into(inner, quantize_for(x, gate_up.expert(0)), gate_up, tiled, tiles.gate_up, activation)
    quantized_multiply_into(workspace.rows, quantize_for(inner, down.expert(0)), down, tiled, tiles.down, None)


def _multiply(
    out: Tensor, x: Tensor, matrices: Tensor, tiled: TiledPairs, tiling: MoeTiling, activation: Activation | None
) -> None:
    """Store a row of out for each pair. With an activation x has a row per token, else one per pair."""
    assert matrices.is_contiguous()
    _, num_weight_rows, depth = matrices.shape
    num_outputs = num_weight_rows if activation is None else num_weight_rows // 2
    block = tiling.num_weight_rows if activation is None else tiling.num_weight_rows // 2
    launch(
        multiply_kernel, (tiled.num_tiles * triton.cdiv(num_outputs, block),),
        out, x, matrices, *tiled.arguments,
        PAIRS_PER_ROW=1 if activation is None else tiled.chosen.shape[1],
        NUM_OUTPUTS=num_outputs, DEPTH=depth, ACTIVATION=activation, COMPARED=tiled.num_compared,
        BLOCK_M=tiling.num_rows, BLOCK_N=block, BLOCK_K=tiling.depth,
        num_warps=tiling.num_warps, num_stages=tiling.num_stages, enable_fp_fusion=False,
    )  # fmt: skip


# -- GEMMs ------------------------------------------------------------------------------------------------------------


@triton.jit(do_not_specialize=["num_pairs", "most_tiles"])
def multiply_kernel(
    out, x, matrices, chosen, order, tiles, num_pairs, most_tiles,
    PAIRS_PER_ROW: tl.constexpr, NUM_OUTPUTS: tl.constexpr, DEPTH: tl.constexpr, ACTIVATION: tl.constexpr,
    COMPARED: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Compute some outputs of a tile of pairs. With an activation a matrix holds gate, then up."""
    pdl_trigger(PDL)
    pdl_wait(PDL)
    first_output, expert, number, pairs = pairs_of_program(
        chosen, order, tiles, num_pairs, most_tiles, NUM_OUTPUTS, COMPARED, BLOCK_M, BLOCK_N
    )
    if number == 0:
        return
    outputs = first_output + tl.arange(0, BLOCK_N)

    is_gated: tl.constexpr = ACTIVATION is not None
    depth = tl.arange(0, BLOCK_K)
    weight_rows: tl.constexpr = 2 * NUM_OUTPUTS if is_gated else NUM_OUTPUTS
    # Past the last output its weights are read again: the result is not stored.
    weights = matrices + expert.to(tl.int64) * weight_rows * DEPTH
    weights += tl.minimum(outputs, NUM_OUTPUTS - 1)[:, None] * DEPTH + depth[None, :]  # [BLOCK_N, BLOCK_K]
    rows = x + (pairs // PAIRS_PER_ROW).to(tl.int64)[None, :] * DEPTH + depth[:, None]  # [BLOCK_K, BLOCK_M]
    total = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
    total_up = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
    inside = tl.full([BLOCK_K], 1, tl.int1)
    for start in range(0, DEPTH, BLOCK_K):
        if DEPTH % BLOCK_K:
            inside = start + depth < DEPTH
        inputs = tl.load(rows + start, mask=inside[:, None], other=0.0)
        total = dot(tl.load(weights + start, mask=inside[None, :], other=0.0), inputs, total)
        if is_gated:
            up = tl.load(weights + (start + NUM_OUTPUTS * DEPTH), mask=inside[None, :], other=0.0)
            total_up = dot(up, inputs, total_up)
    store_pairs(out, total, total_up, first_output, pairs, number, num_pairs, NUM_OUTPUTS, BLOCK_M, ACTIVATION)


# -- adding up --------------------------------------------------------------------------------------------------------


@triton.jit
def combine_kernel(
    out, rows, weights, NUM_CHOSEN: tl.constexpr, HIDDEN: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr
):
    """Add up some columns of a token: its experts' rows, in their order, by their weights."""
    pdl_trigger(PDL)
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    pdl_wait(PDL)
    for slot in tl.static_range(NUM_CHOSEN):
        pair = token * NUM_CHOSEN + slot
        row = tl.load(rows + pair * HIDDEN + columns, mask=columns < HIDDEN, other=0.0)
        total = tl.fma(row.to(tl.float32), tl.load(weights + pair), total)
    tl.store(out + token * HIDDEN + columns, round_to(total, out.dtype.element_ty), mask=columns < HIDDEN)
