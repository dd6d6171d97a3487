"""What a family defines: how its config is read, and which parameter each of its tensors fills."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from archerfish.arch.arch import Arch, ExpertsSpec
from archerfish.models.families.fields import Fields

if TYPE_CHECKING:
    from torch import Tensor

Transform = Callable[["Tensor"], "Tensor"]
"""Turns the stored layout of a tensor into ours."""


@dataclass(frozen=True, slots=True)
class Placement:
    """A tensor of a checkpoint and the parameter of our decoder that it fills."""

    source: str
    """Name in the checkpoint."""
    target: str
    """Name of our parameter."""
    rows: slice | None = None
    """The part of our parameter that it fills, where several tensors share one."""
    expert: int | None = None
    """The expert that it belongs to, where experts share one parameter."""
    transform: Transform | None = None


PlacementFunction = Callable[[Arch], Iterator[Placement]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    read: Callable[[Fields], Arch]
    placements: PlacementFunction
    renames: tuple[tuple[str, str], ...] = ()
    """(pattern, replacement) that turn the spellings seen in checkpoints into the one that `placements` uses."""
    ignored: tuple[str, ...] = ()
    """Regular expressions of tensors that are not needed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """Names of the usual parts of a decoder in a checkpoint; `{i}` is the layer, `{e}` the expert."""

    embedding: str = "model.embed_tokens"
    norm: str = "model.norm"
    head: str = "lm_head"
    layer: str = "model.layers.{i}."
    attention_norm: str = "input_layernorm"
    attention_out_norm: str = "post_attention_layernorm"
    mlp_norm: str = "post_attention_layernorm"
    mlp_out_norm: str = "post_feedforward_layernorm"
    qkv: str | tuple[str, str, str] = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    q_norm: str = "self_attn.q_norm"
    k_norm: str = "self_attn.k_norm"
    output: str = "self_attn.o_proj"
    up: str | tuple[str, str] = ("mlp.gate_proj", "mlp.up_proj")
    down: str = "mlp.down_proj"
    router: str = "mlp.gate"
    expert_up: tuple[str, str] = ("mlp.experts.{e}.gate_proj", "mlp.experts.{e}.up_proj")
    expert_down: str = "mlp.experts.{e}.down_proj"
    linear_transform: Transform | None = None
    """Applied to every matrix of a layer: GPT-2 stores them transposed."""

    def placements(self, arch: Arch) -> Iterator[Placement]:
        yield Placement(f"{self.embedding}.weight", "embedding.weight")
        yield from self._norm(arch, self.norm, "norm")
        if not arch.tie_embeddings:
            yield Placement(f"{self.head}.weight", "head.weight")
        if arch.head_bias:
            yield Placement(f"{self.head}.bias", "head.bias")
        for index in range(len(arch.layers)):
            yield from self._layer(arch, index)

    def _layer(self, arch: Arch, index: int) -> Iterator[Placement]:
        spec = arch.layers[index]
        there, ours = self.layer.format(i=index), f"layers.{index}."
        if spec.norm_inputs:
            yield from self._norm(arch, there + self.attention_norm, ours + "attention_norm")
            if not spec.shared_input_norm:
                yield from self._norm(arch, there + self.mlp_norm, ours + "mlp_norm")
        if spec.norm_outputs:
            yield from self._norm(arch, there + self.attention_out_norm, ours + "attention_out_norm")
            yield from self._norm(arch, there + self.mlp_out_norm, ours + "mlp_out_norm")
        yield from self._attention(arch, index, there, ours + "attention.")
        yield from self._feed_forward(arch, index, there, ours + "mlp.")

    def _attention(self, arch: Arch, index: int, there: str, ours: str) -> Iterator[Placement]:
        spec = arch.layers[index].attention
        widths = (spec.q_width, spec.kv_width, spec.kv_width)
        if isinstance(self.qkv, str):
            yield from self._linear(there + self.qkv, ours + "qkv", spec.qkv_bias)
        else:
            first = 0
            for name, width in zip(self.qkv[: 3 if spec.kv_source is None else 1], widths, strict=False):
                yield from self._linear(there + name, ours + "qkv", spec.qkv_bias, slice(first, first + width))
                first += width
        if spec.qk_norm is not None:
            yield Placement(f"{there}{self.q_norm}.weight", ours + "q_norm.weight")
            if spec.kv_source is None:
                yield Placement(f"{there}{self.k_norm}.weight", ours + "k_norm.weight")
        yield from self._linear(there + self.output, ours + "output", spec.output_bias)

    def _feed_forward(self, arch: Arch, index: int, there: str, ours: str) -> Iterator[Placement]:
        spec = arch.layers[index].feed_forward
        if isinstance(spec, ExpertsSpec):
            yield Placement(f"{there}{self.router}.weight", ours + "router.weight")
            for expert in range(spec.num_experts):
                for half, name in enumerate(self.expert_up):
                    rows = slice(half * spec.size, (half + 1) * spec.size)
                    yield Placement(f"{there}{name.format(e=expert)}.weight", ours + "up", rows, expert)
                yield Placement(f"{there}{self.expert_down.format(e=expert)}.weight", ours + "down", expert=expert)
            return
        if isinstance(self.up, str):
            yield from self._linear(there + self.up, ours + "up", spec.bias)
        else:
            for half, name in enumerate(self.up):
                rows = slice(half * spec.size, (half + 1) * spec.size)
                yield from self._linear(there + name, ours + "up", spec.bias, rows)
        yield from self._linear(there + self.down, ours + "down", spec.bias)

    def _linear(self, there: str, ours: str, bias: bool, rows: slice | None = None) -> Iterator[Placement]:
        yield Placement(f"{there}.weight", f"{ours}.weight", rows, transform=self.linear_transform)
        if bias:
            yield Placement(f"{there}.bias", f"{ours}.bias", rows)

    def _norm(self, arch: Arch, there: str, ours: str) -> Iterator[Placement]:
        yield Placement(f"{there}.weight", f"{ours}.weight")
        if arch.norm.kind == "layer":
            yield Placement(f"{there}.bias", f"{ours}.bias")
