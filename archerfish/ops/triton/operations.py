"""The operations of a decoder by Triton kernels: run at once, or recorded, fused and run as a program."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from archerfish.arch.arch import Activation
from archerfish.ops.signatures import Chunks, LayerCache
from archerfish.ops.triton import attention, elementwise, gemm, graph, moe, sampling
from archerfish.ops.triton.graph import (
    TritonProgram,
    TritonRecording,
    fuse_activation,
    fuse_activation_quantize,
    fuse_float_output,
    fuse_qk_norm_rope_kv_write,
    fuse_residual,
)
from archerfish.ops.triton.runtime import start_compiler

_FUSIONS = (fuse_activation, fuse_float_output, fuse_residual, fuse_qk_norm_rope_kv_write, fuse_activation_quantize)

OutputSpec = tuple[tuple[int, ...], torch.dtype]
"""The shape of a row and the dtype of an operation's output."""


class DeviceStep(NamedTuple):
    """What attention reads of a captured step: buffers at the same addresses for every step of its shape."""

    work: Mapping[int | None, attention.AttentionWork]
    """Units of work by attention window."""
    tables: tuple[Tensor, ...]
    """For each KV group, [rows, blocks] int32 of all rows."""
    scratch: attention.AttentionScratch
    trees: attention.DeviceTreePaths | None
    """Paths of draft trees, in steps that have some."""


class TritonOps:
    """Triton's operations. Those of a decoder are recorded instead of run while a recording is active."""

    def __init__(self) -> None:
        gemm.require_ordered_cublas()
        start_compiler()
        self._recording: TritonRecording | None = None

    def functions(self) -> dict[str, Callable[..., Any]]:
        """Return the operations by name."""
        recordable = {
            name: self._recordable(name, _EAGER[name], _OUTPUT_SPECS[name]) for name in _OUTPUT_SPECS if name in _EAGER
        }
        return {**recordable, "copy_blocks": attention.copy_blocks, "move_kv": attention.move_kv, "draw": sampling.draw}

    @property
    def select(self) -> Callable[[Tensor, Tensor], Tensor]:
        """Return the operation (x, indices) -> x[indices]."""
        return self._recordable("select", select, _like_first)

    @property
    def widen(self) -> Callable[[Tensor], Tensor]:
        """Return the operation that casts to float32."""
        return self._recordable("widen", lambda x: x.float(), lambda x: [(tuple(x.shape[1:]), torch.float32)])

    @contextmanager
    def recording(self, recording: TritonRecording) -> Iterator[None]:
        """Record the operations called within this context instead of running them."""
        self._recording = recording
        try:
            yield
        finally:
            self._recording = None

    def finish(self, recording: TritonRecording, outputs: list[Tensor]) -> TritonProgram:
        return recording.finish(outputs, _FUSIONS)

    def await_compiler(self) -> None:
        """Wait until kernels can be launched without start-up cost."""
        start_compiler().join()

    def run(self, program: TritonProgram, inputs: Mapping[str, Any]) -> list[Tensor]:
        return program.run(_RECORDED, inputs)

    def _recordable(
        self, name: str, function: Callable[..., Any], output_specs: Callable[..., list[OutputSpec]]
    ) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            if self._recording is None:
                return function(*arguments)
            return self._recording.record(name, arguments, *output_specs(*arguments))

        return call


# -- outputs of operations ---------------------------------------------------------------------------------------------


def _like_first(x: Tensor, *_: Any) -> list[OutputSpec]:
    return [(tuple(x.shape[1:]), x.dtype)]


def _outputs(x: Tensor, weight: Any, _: Tensor | None) -> list[OutputSpec]:
    return [((weight.shape[0],), x.dtype)]


def _looked_up(_: Tensor, table: Any) -> list[OutputSpec]:
    return [((table.shape[1],), gemm.row_dtype(table))]


def _activated(x: Tensor, _: Activation, gated: bool) -> list[OutputSpec]:
    return [((x.shape[1] // (2 if gated else 1),), x.dtype)]


def _routed(_: Tensor, num_chosen: int, __: bool) -> list[OutputSpec]:
    return [((num_chosen,), torch.int32), ((num_chosen,), torch.float32)]


_OUTPUT_SPECS: dict[str, Callable[..., list[OutputSpec]]] = {
    "linear": _outputs,
    "embed": _looked_up,
    "add": _like_first,
    "scale": _like_first,
    "softcap": _like_first,
    "rms_norm": _like_first,
    "layer_norm": _like_first,
    "rotate": _like_first,
    "activate": _activated,
    "route": _routed,
    "experts": _like_first,
    "attend": _like_first,
    "write_kv": lambda *_: [],
}


# -- running operations ------------------------------------------------------------------------------------------------


def select(x: Tensor, indices: Tensor | None) -> Tensor:
    """Return x[indices]; x itself for None, which selects all rows in order."""
    if indices is None:
        return x
    out = torch.empty((len(indices), x.shape[1]), dtype=x.dtype, device=x.device)
    graph.select_into(out, x, indices)
    return out


def _attend(
    q: Tensor,
    layer: LayerCache,
    step: Chunks | DeviceStep,
    group: int,
    scale: float,
    window: int | None,
    softcap: float | None,
) -> Tensor:
    if isinstance(step, Chunks):
        return attention.attend(q, layer, step, group, scale, window, softcap)
    out = torch.empty_like(q)
    scoring = attention.Scoring(scale, window, softcap)
    attention.attend_into(out, q, layer, step.work[window], step.tables[group], step.scratch, scoring, step.trees)
    return out


def _qk_norm_rope_kv_write(
    qkv: Tensor,
    num_heads: int,
    layer: LayerCache | None,
    slots: Tensor | None,
    positions: Tensor,
    angles: Tensor,
    q_norm: gemm.Norm | None,
    k_norm: gemm.Norm | None,
) -> Tensor:
    head_dim = qkv.shape[1] // num_heads if layer is None else layer.keys.shape[3]
    out = torch.empty((len(qkv), num_heads, head_dim), dtype=qkv.dtype, device=qkv.device)
    q_weight, eps, weight_offset = q_norm or (None, 0.0, 0.0)
    k_weight = None if k_norm is None else k_norm[0]
    heads = attention.QkNormRope(
        angles=angles, q_weight=q_weight, k_weight=k_weight, eps=eps, weight_offset=weight_offset
    )
    attention.qk_norm_rope_kv_write_into(out, qkv, layer, slots, positions, heads)
    return out


_EAGER: dict[str, Callable[..., Any]] = {
    "linear": gemm.linear,
    "embed": gemm.embed,
    "add": elementwise.add,
    "scale": elementwise.scale,
    "softcap": elementwise.softcap,
    "rms_norm": elementwise.rms_norm,
    "layer_norm": elementwise.layer_norm,
    "rotate": elementwise.rotate,
    "activate": elementwise.activate,
    "route": moe.route,
    "experts": moe.experts,
    "attend": _attend,
    "write_kv": attention.write_kv,
}

_RECORDED: dict[str, Callable[..., Any]] = {
    **_EAGER,
    "select": select,
    "widen": lambda x: x.float(),
    "wide_linear": gemm.wide_linear,
    "gated_linear": gemm.gated_linear,
    "linear_add": gemm.linear_add,
    "linear_add_norm": gemm.linear_add_norm,
    "rms_norm_quantized": gemm.rms_norm_quantized,
    "gated_linear_quantized": gemm.gated_linear_quantized,
    "linear_add_norm_quantized": gemm.linear_add_norm_quantized,
    "qk_norm_rope_kv_write": _qk_norm_rope_kv_write,
}
