"""The operations of a model as benchmark cases: inputs of its shapes, and the work in them. Times nothing.

Work is what cannot be avoided: each input read once, each output written once, and the operations of GEMMs and
attention. Arithmetic of other operations is left out, because memory bounds them everywhere.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor

from archerfish.arch.arch import Arch, AttentionSpec, ExpertsSpec, MlpSpec
from archerfish.arch.cost import keys_read, keys_seen
from archerfish.bench.kernels.matrices import (
    FORMATS,
    VOCABULARY_FORMATS,
    FullMatrices,
    Matrices,
    QuantizedMatrices,
    noise,
)
from archerfish.ops.dtypes import torch_dtype
from archerfish.ops.signatures import DRAW_ROW, Chunks, LayerCache
from archerfish.quant import KvFormat

_INDEX_BYTES = 8
_HEAD, _ROUTER = "head", "router"


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelCase:
    """One operation at one shape."""

    operation: str
    shape: str
    """Shape in words."""
    make: Callable[[], tuple[Any, ...]]
    """Makes new arguments."""
    num_bytes: float
    flops: float = 0.0
    """Operations; 0 where only memory counts."""
    format: str | None = None
    """Format of quantized matrices; None for those in the model's own format, and for operations without matrices."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseParams:
    """The steps that cases are made for."""

    arch: Arch
    batch_sizes: Sequence[int]
    """Tokens of each step."""
    context: int
    """Tokens that each sequence attends to."""
    block_size: int
    device: str
    dtype: torch.dtype
    kv_format: KvFormat
    quantized: bool = False
    """Whether to include matrices in every quantized format."""


def kernel_cases(params: CaseParams) -> Iterator[KernelCase]:
    """Return every case once, however many layers have it; operations that the model does not use have none.

    Cases that differ only in format are neighbours.
    """
    alike: dict[tuple[str, str], list[KernelCase]] = {}
    for case in _all_cases(params):
        alike.setdefault((case.operation, case.shape), []).append(case)
    return chain.from_iterable(alike.values())


def _all_cases(params: CaseParams) -> Iterator[KernelCase]:
    full = FullMatrices(params.dtype, params.device)
    for num_tokens in params.batch_sizes:
        maker = _Maker(params, num_tokens, full)
        yield from maker.linears()
        yield maker.embed()
        yield from maker.sums()
        yield maker.norm()
        yield from maker.rotations()
        yield from maker.feed_forwards()
        for spec in _distinct(layer.attention for layer in params.arch.layers):
            yield maker.attend(spec, num_tokens, 1, f"{num_tokens} x 1 token, context {params.context}")
        yield maker.write_kv()
        yield maker.copy_blocks()
        yield maker.move_kv()
        yield maker.draw()
        if params.quantized:
            yield from _quantized_cases(params, num_tokens)
    whole = _Maker(params, params.context, full)
    for spec in _distinct(layer.attention for layer in params.arch.layers):
        yield whole.attend(spec, 1, params.context, f"prompt of {params.context} tokens")


def _quantized_cases(params: CaseParams, num_tokens: int) -> Iterator[KernelCase]:
    """Return cases with matrices, in each of their formats. Routers are never quantized."""
    for weights in FORMATS:
        maker = _Maker(params, num_tokens, QuantizedMatrices(weights))
        yield from maker.linears(lambda name: name not in (_HEAD, _ROUTER))
        yield from maker.experts()
    for weights in VOCABULARY_FORMATS:
        maker = _Maker(params, num_tokens, QuantizedMatrices(weights))
        yield from maker.linears(lambda name: name == _HEAD)
        yield maker.embed()


def _distinct(specs: Iterator[AttentionSpec]) -> list[AttentionSpec]:
    """Return one spec for each kind of attention."""
    return list({(s.num_heads, s.num_kv_heads, s.head_dim, s.window, s.softcap): s for s in specs}.values())


class _Maker:
    """Makes cases of steps with so many tokens."""

    def __init__(self, params: CaseParams, num_tokens: int, matrices: Matrices) -> None:
        self._arch = params.arch
        self._params = params
        self._num_tokens = num_tokens
        self._matrices = matrices
        self._attention = params.arch.layers[0].attention

    # -- inputs ---------------------------------------------------------------------------------------------------

    def _noise(self, *shape: int) -> Tensor:
        return noise(shape, self._params.dtype, self._params.device)

    def _below(self, limit: int, *shape: int) -> Tensor:
        return torch.randint(limit, shape, device=self._params.device)

    def _bytes(self, *counts: int) -> float:
        return float(sum(counts)) * self._params.dtype.itemsize

    # -- everything but attention ---------------------------------------------------------------------------------

    def linears(self, is_wanted: Callable[[str], bool] = lambda _: True) -> Iterator[KernelCase]:
        arch, wanted = self._arch, dict[tuple[int, int], str]()
        for layer in arch.layers:
            spec, part = layer.attention, layer.feed_forward
            wanted.setdefault((spec.qkv_width, arch.hidden_size), "qkv")
            wanted.setdefault((arch.hidden_size, spec.q_width), "output")
            if isinstance(part, MlpSpec):
                wanted.setdefault((part.size * (2 if part.gated else 1), arch.hidden_size), "up")
                wanted.setdefault((arch.hidden_size, part.size), "down")
            else:
                wanted.setdefault((part.num_experts, arch.hidden_size), _ROUTER)
        wanted.setdefault((arch.vocab_size, arch.hidden_size), _HEAD)
        for (out, into), name in wanted.items():
            if is_wanted(name):
                yield self._linear(name, out, into)

    def _linear(self, name: str, out: int, into: int) -> KernelCase:
        tokens = self._num_tokens
        return KernelCase(
            operation="linear",
            shape=f"{name}: {tokens} x {into} -> {out}",
            format=self._matrices.format,
            make=lambda: (self._noise(tokens, into), self._matrices.make(out, into), None),
            flops=2.0 * tokens * out * into,
            num_bytes=self._matrices.num_bytes(out, into) + self._bytes(tokens * into, tokens * out),
        )

    def embed(self) -> KernelCase:
        tokens, width, rows = self._num_tokens, self._arch.hidden_size, self._arch.vocab_size
        return KernelCase(
            operation="embed",
            shape=f"{tokens} of {rows} rows x {width}",
            format=self._matrices.format,
            make=lambda: (self._below(rows, tokens), self._matrices.make(rows, width)),
            num_bytes=tokens * (self._matrices.num_bytes(rows, width) / rows + self._bytes(width) + _INDEX_BYTES),
        )

    def sums(self) -> Iterator[KernelCase]:
        """Return cases of elementwise operations on rows of hidden states or logits."""
        arch, tokens = self._arch, self._num_tokens
        width, words = arch.hidden_size, arch.vocab_size
        yield KernelCase(
            operation="add",
            shape=f"{tokens} x {width}",
            make=lambda: (self._noise(tokens, width), self._noise(tokens, width), arch.residual_multiplier),
            num_bytes=self._bytes(3 * tokens * width),
        )
        if arch.embedding_multiplier != 1.0:
            yield KernelCase(
                operation="scale",
                shape=f"{tokens} x {width}",
                make=lambda: (self._noise(tokens, width), arch.embedding_multiplier),
                num_bytes=self._bytes(2 * tokens * width),
            )
        if (cap := arch.logit_softcap) is not None:
            yield KernelCase(
                operation="softcap",
                shape=f"{tokens} x {words}",
                make=lambda: (self._noise(tokens, words), cap),
                num_bytes=self._bytes(2 * tokens * words),
            )

    def norm(self) -> KernelCase:
        tokens, width, spec = self._num_tokens, self._arch.hidden_size, self._arch.norm
        shape = f"{tokens} x {width}"
        if spec.kind == "rms":
            return KernelCase(
                operation="rms_norm",
                shape=shape,
                make=lambda: (self._noise(tokens, width), self._noise(width), spec.eps, spec.weight_offset),
                num_bytes=self._bytes(2 * tokens * width, width),
            )
        return KernelCase(
            operation="layer_norm",
            shape=shape,
            make=lambda: (self._noise(tokens, width), self._noise(width), self._noise(width), spec.eps),
            num_bytes=self._bytes(2 * tokens * width, 2 * width),
        )

    def rotations(self) -> Iterator[KernelCase]:
        ropes = [layer.attention for layer in self._arch.layers if layer.attention.rope is not None]
        if not ropes or ropes[0].rope is None:
            return
        tokens, heads, dim = self._num_tokens, ropes[0].num_heads, ropes[0].head_dim
        half = len(ropes[0].rope.rotation(2).frequencies)

        def make() -> tuple[Any, ...]:
            angles = torch.rand(tokens, half, device=self._params.device)
            return self._noise(tokens, heads, dim), torch.cat((angles.cos(), angles.sin()), dim=-1)

        yield KernelCase(
            operation="rotate",
            shape=f"{tokens} x {heads} heads x {dim}",
            make=make,
            num_bytes=self._bytes(2 * tokens * heads * dim) + 2 * 4 * tokens * half,
        )

    def feed_forwards(self) -> Iterator[KernelCase]:
        for part in dict.fromkeys(layer.feed_forward for layer in self._arch.layers):
            yield self._activate(part) if isinstance(part, MlpSpec) else self._route(part)
        yield from self.experts()

    def experts(self) -> Iterator[KernelCase]:
        for part in dict.fromkeys(layer.feed_forward for layer in self._arch.layers):
            if isinstance(part, ExpertsSpec):
                yield self._experts(part)

    def _activate(self, spec: MlpSpec) -> KernelCase:
        tokens, width = self._num_tokens, spec.size * (2 if spec.gated else 1)
        return KernelCase(
            operation="activate",
            shape=f"{tokens} x {width} -> {spec.size}, {spec.activation}",
            make=lambda: (self._noise(tokens, width), spec.activation, spec.gated),
            num_bytes=self._bytes(tokens * width, tokens * spec.size),
        )

    def _route(self, spec: ExpertsSpec) -> KernelCase:
        tokens, count, normalize = self._num_tokens, spec.num_experts_per_token, spec.normalize_weights
        return KernelCase(
            operation="route",
            shape=f"{tokens} x {count} of {spec.num_experts} experts",
            make=lambda: (self._noise(tokens, spec.num_experts), count, normalize),
            num_bytes=self._bytes(tokens * spec.num_experts) + tokens * count * (_INDEX_BYTES + 4),
        )

    def _experts(self, spec: ExpertsSpec) -> KernelCase:
        tokens, width, count = self._num_tokens, self._arch.hidden_size, spec.num_experts_per_token
        num_chosen = min(spec.num_experts, tokens * count)
        read = (self._matrices.num_bytes(num_chosen, *shape) for shape in ((2 * spec.size, width), (width, spec.size)))

        def make() -> tuple[Any, ...]:
            chosen = torch.arange(tokens * count, device=self._params.device).view(tokens, count) % spec.num_experts
            weights = torch.full((tokens, count), 1 / count, device=self._params.device)
            up = self._matrices.make(spec.num_experts, 2 * spec.size, width)
            down = self._matrices.make(spec.num_experts, width, spec.size)
            return self._noise(tokens, width), up, down, chosen, weights, spec.activation

        return KernelCase(
            operation="experts",
            shape=f"{tokens} x {width}, {count} of {spec.num_experts} experts of {spec.size}",
            format=self._matrices.format,
            make=make,
            flops=2.0 * tokens * count * 3 * width * spec.size,
            num_bytes=sum(read) + self._bytes(2 * tokens * width),
        )

    # -- attention and its cache ----------------------------------------------------------------------------------

    def attend(self, spec: AttentionSpec, num_chunks: int, length: int, shape: str) -> KernelCase:
        """Return the case of chunks of `length` tokens, each at the end of a context."""
        start, tokens = self._params.context - length, num_chunks * length
        window = "" if spec.window is None else f", window {spec.window}"
        seen, read = (count(start, length, spec.window) for count in (keys_seen, keys_read))
        blocks = -(-self._params.context // self._params.block_size)

        def make() -> tuple[Any, ...]:
            q, chunks = self._noise(tokens, spec.num_heads, spec.head_dim), self._chunks(num_chunks, length, blocks)
            return q, self._cache(num_chunks * blocks), chunks, 0, spec.scale, spec.window, spec.softcap

        return KernelCase(
            operation="attend",
            shape=shape + window + self._kv_note,
            make=make,
            flops=4.0 * spec.q_width * seen * num_chunks,
            num_bytes=self._kv_bytes(read * num_chunks) + self._bytes(2 * tokens * spec.q_width),
        )

    def write_kv(self) -> KernelCase:
        tokens, spec = self._num_tokens, self._attention
        blocks = -(-tokens // self._params.block_size)

        def make() -> tuple[Any, ...]:
            k, v = (self._noise(tokens, spec.num_kv_heads, spec.head_dim) for _ in range(2))
            slots = torch.randperm(blocks * self._params.block_size, device=self._params.device)[:tokens]
            return k, v, self._cache(blocks), slots

        return KernelCase(
            operation="write_kv",
            shape=f"{tokens} x {spec.num_kv_heads} heads x {spec.head_dim}{self._kv_note}",
            make=make,
            num_bytes=self._bytes(2 * tokens * spec.kv_width) + self._kv_bytes(tokens) + tokens * _INDEX_BYTES,
        )

    def copy_blocks(self) -> KernelCase:
        count, block_size = self._num_tokens, self._params.block_size

        def make() -> tuple[Any, ...]:
            order = torch.randperm(2 * count, device=self._params.device)
            return self._cache(2 * count), order[:count], order[count:]

        return KernelCase(
            operation="copy_blocks",
            shape=f"{count} blocks of {block_size} tokens{self._kv_note}",
            make=make,
            num_bytes=2 * self._kv_bytes(count * block_size) + 2 * count * _INDEX_BYTES,
        )

    def move_kv(self) -> KernelCase:
        count, blocks = self._num_tokens, -(-2 * self._num_tokens // self._params.block_size)

        def make() -> tuple[Any, ...]:
            order = torch.randperm(blocks * self._params.block_size, device=self._params.device)
            return self._cache(blocks), order[:count], order[count : 2 * count]

        return KernelCase(
            operation="move_kv",
            shape=f"{count} x {self._attention.num_kv_heads} heads x {self._attention.head_dim}{self._kv_note}",
            make=make,
            num_bytes=2 * self._kv_bytes(count) + 2 * count * _INDEX_BYTES,
        )

    def draw(self) -> KernelCase:
        rows, width = self._num_tokens, self._arch.vocab_size

        def make() -> tuple[Any, ...]:
            params = np.zeros(rows, DRAW_ROW)
            params["seed"], params["temperature"], params["top_p"] = np.arange(rows), 0.7, 0.9
            return self._noise(rows, width).float(), params

        return KernelCase(
            operation="draw", shape=f"{rows} of {width:,} tokens, top_p 0.9", make=make, num_bytes=4 * rows * width
        )

    def _cache(self, num_blocks: int) -> LayerCache:
        shape = (num_blocks, self._params.block_size, self._attention.num_kv_heads, self._attention.head_dim)
        dtype = torch_dtype(self._params.kv_format.name)
        if dtype != torch.int8:
            return LayerCache(*(self._noise(*shape).to(dtype) for _ in range(2)))
        numbers = ((self._noise(*shape) * 40).to(dtype) for _ in range(2))  # Hardly any of them are beyond 127.
        return LayerCache(*numbers, *(self._noise(*shape[:-1]).float() / 40 for _ in range(2)))

    @property
    def _kv_note(self) -> str:
        """Return a note on the format of keys and values, if it is not the model's own."""
        stored = self._params.kv_format
        return "" if stored.name == stored.of_model else f", stored as {stored}"

    def _kv_bytes(self, num_tokens: int) -> float:
        """Return the bytes of keys and values of so many tokens, as stored."""
        bytes_per_value = self._params.kv_format.bytes_per_value(self._attention.head_dim)
        return 2 * num_tokens * self._attention.kv_width * bytes_per_value

    def _chunks(self, num_chunks: int, length: int, blocks: int) -> Chunks:
        """Return chunks with blocks of their own, in random order."""
        device, end = self._params.device, self._params.context
        lengths, ends = np.full(num_chunks, length, np.int64), np.full(num_chunks, end, np.int64)

        def on_device(values: Any) -> Tensor:
            return torch.as_tensor(values, dtype=torch.int32, device=device)

        table = torch.randperm(num_chunks * blocks, device=device).view(num_chunks, blocks)
        return Chunks(
            query_starts=on_device(np.arange(num_chunks + 1) * length),
            lengths=on_device(lengths),
            ends=on_device(ends),
            tables=(table.int(),),
            slots=(torch.arange(num_chunks * length, device=device),),
            host_lengths=lengths,
            host_ends=ends,
        )
