"""The operations by Triton kernels: run at once, or written down to be joined and run again and again."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from archerfish.arch.arch import Activation
from archerfish.ops.signatures import Chunks, LayerCache
from archerfish.ops.triton import attention, elementwise, gemm, graph, moe, sampling
from archerfish.ops.triton.graph import (
    Program,
    Recording,
    join_activation,
    join_placing,
    join_residual,
    join_rounding,
    join_widening,
)
from archerfish.ops.triton.runtime import wake_compiler

_JOINS = (join_activation, join_widening, join_residual, join_placing, join_rounding)

Result = tuple[tuple[int, ...], torch.dtype]
"""The shape of a row and the number format of what an operation makes."""


class DeviceStep(NamedTuple):
    """What attention is told of a captured step: where things lie, the same places for every step of its kind."""

    work: Mapping[int | None, attention.Work]
    """By window."""
    tables: tuple[Tensor, ...]
    """For each KV group, [rows, blocks] int32 of all rows."""
    scratch: attention.AttentionScratch
    lines: attention.Lines | None
    """Of steps with trees."""


class TritonOps:
    """One method for each operation that is told of a recording; the others are called as they are."""

    def __init__(self) -> None:
        gemm.walk_in_order()
        wake_compiler()
        self._recording: Recording | None = None

    def functions(self) -> dict[str, Callable[..., Any]]:
        """The operations of a decoder, by their names."""
        recordable = {name: self._recordable(name, _EAGER[name], _MADE[name]) for name in _MADE if name in _EAGER}
        return {**recordable, "copy_blocks": attention.copy_blocks, "move_kv": attention.move_kv, "draw": sampling.draw}

    @property
    def select(self) -> Callable[[Tensor, Tensor], Tensor]:
        """(x, picked) -> x[picked]."""
        return self._recordable("select", select, _like_first)

    @property
    def widen(self) -> Callable[[Tensor], Tensor]:
        """The same numbers in float32."""
        return self._recordable("widen", lambda x: x.float(), lambda x: [(tuple(x.shape[1:]), torch.float32)])

    @contextmanager
    def recording(self, recording: Recording) -> Iterator[None]:
        """What is called meanwhile is written down instead of run."""
        self._recording = recording
        try:
            yield
        finally:
            self._recording = None

    def finish(self, recording: Recording, outputs: list[Tensor]) -> Program:
        return recording.finish(outputs, _JOINS)

    def await_compiler(self) -> None:
        """Before the first launch, and after whatever could be done meanwhile."""
        wake_compiler().join()

    def run(self, program: Program, inputs: Mapping[str, Any]) -> list[Tensor]:
        return program.run(_LINES, inputs)

    def _recordable(
        self, name: str, function: Callable[..., Any], made: Callable[..., list[Result]]
    ) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            if self._recording is None:
                return function(*arguments)
            return self._recording.line(name, arguments, *made(*arguments))

        return call


# -- what a line makes ------------------------------------------------------------------------------------------------


def _like_first(x: Tensor, *_: Any) -> list[Result]:
    return [(tuple(x.shape[1:]), x.dtype)]


def _outputs(x: Tensor, weight: Any, _: Tensor | None) -> list[Result]:
    return [((weight.shape[0],), x.dtype)]


def _looked_up(_: Tensor, table: Any) -> list[Result]:
    return [((table.shape[1],), gemm.row_dtype(table))]


def _activated(x: Tensor, _: Activation, gated: bool) -> list[Result]:
    return [((x.shape[1] // (2 if gated else 1),), x.dtype)]


def _routed(_: Tensor, num_chosen: int, __: bool) -> list[Result]:
    return [((num_chosen,), torch.int32), ((num_chosen,), torch.float32)]


_MADE: dict[str, Callable[..., list[Result]]] = {
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


# -- how a line is run ------------------------------------------------------------------------------------------------


def select(x: Tensor, picked: Tensor | None) -> Tensor:
    """Of a step that picks all of its rows in order, nobody says so."""
    if picked is None:
        return x
    out = torch.empty((len(picked), x.shape[1]), dtype=x.dtype, device=x.device)
    graph.select_into(out, x, picked)
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
    attention.attend_into(out, q, layer, step.work[window], step.tables[group], step.scratch, scoring, step.lines)
    return out


def _place(
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
    heads = attention.HeadSteps(
        angles=angles, q_weight=q_weight, k_weight=k_weight, eps=eps, weight_offset=weight_offset
    )
    attention.place_into(out, qkv, layer, slots, positions, heads)
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

_LINES: dict[str, Callable[..., Any]] = {
    **_EAGER,
    "select": select,
    "widen": lambda x: x.float(),
    "wide_linear": gemm.wide_linear,
    "gated_linear": gemm.gated_linear,
    "linear_add": gemm.linear_add,
    "linear_add_norm": gemm.linear_add_norm,
    "rounded_norm": gemm.rounded_norm,
    "rounded_gated_linear": gemm.rounded_gated,
    "linear_add_rounded_norm": gemm.linear_add_rounded_norm,
    "place": _place,
}
