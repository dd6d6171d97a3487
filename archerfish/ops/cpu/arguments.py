"""Tensors described as the structures that native kernels read. The tensors must outlive them."""

from ctypes import c_void_p

import numpy as np
import torch
from torch import Tensor

from archerfish.ops.cpu import program
from archerfish.ops.cpu.program import CacheFormat, Format
from archerfish.ops.packed import PackedExperts, PackedWeight
from archerfish.ops.signatures import Chunks, LayerCache

LANES = 16
"""Numbers in a vector. Head dimensions and block sizes are multiples of it."""
_CACHE_FORMATS = {
    torch.float32: CacheFormat.FLOAT32,
    torch.bfloat16: CacheFormat.BFLOAT16,
    torch.int8: CacheFormat.INT8,
}


def step_view(
    num_rows: int, tokens: Tensor | None, positions: Tensor | None, chunks: Chunks | None
) -> program.StepView:
    """Describe a step of so many rows."""
    step = program.StepView(num_rows=num_rows)
    step.tokens = None if tokens is None else tokens.data_ptr()
    step.positions = None if positions is None else positions.data_ptr()
    if chunks is not None:
        step.num_kv_groups = len(chunks.tables)
        step.num_chunks, step.table_width = len(chunks.host_ends), chunks.tables[0].shape[1]
        step.query_starts, step.ends = chunks.query_starts.data_ptr(), chunks.ends.data_ptr()
        pointers = c_void_p * len(chunks.tables)
        step.tables = pointers(*(table.data_ptr() for table in chunks.tables))
        step.slots = pointers(*(slots.data_ptr() for slots in chunks.slots)) if chunks.slots else None
        if chunks.trees is not None:
            step.tree_depths, step.tree_paths = chunks.trees.depths.data_ptr(), chunks.trees.paths.data_ptr()
    return step


def rows_only(x: Tensor) -> program.StepView:
    """Describe a step for operations that read nothing of it but its number of rows."""
    return program.StepView(num_rows=len(x))


def strided_rows(x: Tensor) -> program.StridedRows:
    """Describe [rows, width] or [rows, parts, width]."""
    assert x.dtype == torch.float32 and (x.stride(-1) == 1 or not x.numel()), "native operations work on float32 rows"
    if x.dim() == 2:
        return program.StridedRows(x.data_ptr(), x.stride(0), 0, 1, x.shape[1])
    return program.StridedRows(x.data_ptr(), x.stride(0), x.stride(1), x.shape[1], x.shape[2])


def is_vector(x: Tensor, width: int) -> bool:
    """Return whether kernels can read [width] float32."""
    return x.shape == (width,) and x.dtype == torch.float32 and x.is_contiguous()


def weight_matrix(weight: PackedWeight, bias: Tensor | None) -> program.WeightMatrix:
    """Describe a packed matrix, with the bias that a linear layer adds."""
    return program.WeightMatrix(
        weight.format,
        weight.group,
        weight.num_outputs,
        weight.num_inputs,
        weight.padded_inputs,
        weight.data.shape[1],
        weight.data.data_ptr(),
        None if weight.scales is None else weight.scales.data_ptr(),
        None if bias is None else bias.data_ptr(),
    )


def unpacked_table(table: Tensor) -> program.WeightMatrix:
    """Describe an embedding table that is not packed: its panels have 0 bytes."""
    assert table.is_contiguous()
    number_format = {torch.float32: Format.FLOAT32, torch.bfloat16: Format.BFLOAT16}[table.dtype]
    rows, width = table.shape
    return program.WeightMatrix(number_format, 1, rows, width, width, 0, table.data_ptr())


def expert_weights(weights: PackedExperts) -> program.ExpertWeights:
    """Describe the matrices of all experts."""
    scale_stride = 0 if weights.scales is None else weights.scales.stride(0)
    return program.ExpertWeights(weight_matrix(weights.first, None), weights.data.stride(0), scale_stride)


def expert_routes(chosen: Tensor, weights: Tensor, num_experts: int) -> program.ExpertRoutes:
    """Describe the experts of each row, [T, k], and their weights."""
    assert chosen.dtype == torch.int32 and chosen.is_contiguous() and weights.is_contiguous()
    return program.ExpertRoutes(chosen.data_ptr(), weights.data_ptr(), chosen.shape[1], num_experts)


def paged_cache(cache: LayerCache, kv_group: int) -> program.PagedCache:
    """Describe the cache of a layer, whose block tables are those of the KV group."""
    assert all(tensor.is_contiguous() for tensor in cache.tensors), "kernels have a layout of their own within a block"
    num_blocks, block_size, num_heads, head_dim = cache.keys.shape
    assert cache.keys.shape == cache.values.shape and cache.keys.dtype == cache.values.dtype
    assert head_dim % LANES == 0 and head_dim <= program.MAX_HEAD_DIM and block_size % LANES == 0
    has_scales = [
        scales is not None and scales.shape == cache.keys.shape[:3] for scales in (cache.key_scales, cache.value_scales)
    ]
    assert all(has_scales) if cache.keys.dtype == torch.int8 else not any(has_scales)
    return program.PagedCache(
        cache.keys.data_ptr(),
        cache.values.data_ptr(),
        None if cache.key_scales is None else cache.key_scales.data_ptr(),
        None if cache.value_scales is None else cache.value_scales.data_ptr(),
        _CACHE_FORMATS[cache.keys.dtype],
        block_size,
        num_heads,
        head_dim,
        kv_group,
        num_blocks,
    )


class AttentionWorkspace:
    """Memory for the softmax states of splits: one for all programs of a team, which run one after the other."""

    def __init__(self) -> None:
        # Zeroed by numpy, whose pages take no memory until they are written: short contexts never write them.
        count = program.MAX_ATTENTION_SPLITS
        accumulators = np.zeros(count * program.MAX_HEAD_DIM, np.float32)
        max_scores, exp_sums = (np.zeros(count, np.float32) for _ in range(2))
        self.num_done = np.zeros(count, np.int32)
        """Finished splits of each query. All 0 between two steps."""
        self._arrays = (accumulators, max_scores, exp_sums, self.num_done)
        self.states = program.SplitStates(*(array.ctypes.data for array in self._arrays))
