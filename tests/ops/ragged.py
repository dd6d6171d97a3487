"""Ragged batches over a paged cache full of other requests' leftovers, and what attention over them must give."""

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from archerfish.ops import Chunks


@dataclass(frozen=True, kw_only=True)
class Shape:
    num_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 8
    block_size: int = 16
    num_groups: int = 1
    dtype: torch.dtype = torch.float32


@dataclass
class Batch:
    """Chunks (start, length) of a step, and everything attention is called with."""

    sizes: list[tuple[int, int]]
    shape: Shape = field(default_factory=Shape)
    window: int | None = None
    """Keys before the window of a chunk's first query are gone, as the engine lets go of their blocks."""
    seed: int = 0
    q: Tensor = field(init=False)
    chunks: Chunks = field(init=False)
    keys: list[Tensor] = field(init=False)
    """For each group, [N, B, G, D] with what the group's layer stored."""
    values: list[Tensor] = field(init=False)
    context: list[list[tuple[Tensor, Tensor]]] = field(init=False)
    """For each group and chunk, the keys and values of positions 0, 1, 2, ... in one piece."""

    def __post_init__(self) -> None:
        self._random = np.random.default_rng(self.seed)
        shape = self.shape
        self.q = self._tensor(sum(length for _, length in self.sizes), shape.num_heads, shape.head_dim)
        self._num_blocks = [-(-(start + length) // shape.block_size) for start, length in self.sizes]
        self._pool = shape.num_groups * sum(self._num_blocks) + 3
        # Blocks of all chunks and groups lie scattered over one pool, as in the engine.
        self._free = self._random.permutation(self._pool).tolist()
        self.keys, self.values, self.context, tables = [], [], [], []
        for _ in range(shape.num_groups):
            tables.append([self._take(count) for count in self._num_blocks])
            self._store(tables[-1])
        self.chunks = self._chunks(tables)

    def _tensor(self, *size: int) -> Tensor:
        return torch.from_numpy(self._random.normal(size=size)).to(self.shape.dtype)

    def _take(self, count: int) -> list[int]:
        return [self._free.pop() for _ in range(count)]

    def _store(self, tables: list[list[int]]) -> None:
        shape = self.shape
        size = (self._pool, shape.block_size, shape.num_kv_heads, shape.head_dim)
        keys, values = _leftovers(self._random, size, shape.dtype), _leftovers(self._random, size, shape.dtype)
        self.context.append([])
        for (start, length), table in zip(self.sizes, tables, strict=True):
            k, v = (self._tensor(start + length, shape.num_kv_heads, shape.head_dim) for _ in range(2))
            gone = 0 if self.window is None else max(0, start - self.window + 1)
            for position in range(gone, start + length):
                block, offset = table[position // shape.block_size], position % shape.block_size
                keys[block, offset], values[block, offset] = k[position], v[position]
            self.context[-1].append((k, v))
        self.keys.append(keys)
        self.values.append(values)

    def _chunks(self, tables: list[list[list[int]]]) -> Chunks:
        lengths = np.array([length for _, length in self.sizes])
        ends = np.array([start + length for start, length in self.sizes])
        return Chunks(
            query_starts=torch.tensor([0, *np.cumsum(lengths)], dtype=torch.int32),
            lengths=torch.from_numpy(lengths).int(),
            ends=torch.from_numpy(ends).int(),
            tables=tuple(self._table(group) for group in tables),
            slots=(),
            host_lengths=lengths,
            host_ends=ends,
        )

    def _table(self, tables: list[list[int]]) -> Tensor:
        """Tables as long as the longest; what lies past a chunk's end or before its window is any block at all."""
        out = torch.from_numpy(self._random.integers(0, self._pool, (len(tables), max(self._num_blocks)))).int()
        for place, table in enumerate(tables):
            start, block_size = self.sizes[place][0], self.shape.block_size
            first = 0 if self.window is None else max(0, start - self.window + 1) // block_size
            out[place, first : len(table)] = torch.tensor(table[first:])
        return out

    def expected(self, group: int, scale: float, softcap: float | None = None) -> Tensor:
        """Dense attention in float64, one chunk and one head at a time."""
        shape = self.shape
        out = torch.empty(self.q.shape, dtype=torch.float64)
        first = 0
        for (start, length), (k, v) in zip(self.sizes, self.context[group], strict=True):
            positions = torch.arange(start, start + length)[:, None]
            places = torch.arange(start + length)
            hidden = places > positions
            if self.window is not None:
                hidden |= places <= positions - self.window
            for head in range(shape.num_heads):
                kv_head = head // (shape.num_heads // shape.num_kv_heads)
                scores = self.q[first : first + length, head].double() @ k[:, kv_head].double().T * scale
                if softcap is not None:
                    scores = softcap * torch.tanh(scores / softcap)
                weights = torch.softmax(scores.masked_fill(hidden, -torch.inf), -1)
                out[first : first + length, head] = weights @ v[:, kv_head].double()
            first += length
        return out


def _leftovers(random: np.random.Generator, size: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """What earlier requests may have left: ordinary, huge, infinite, not a number."""
    values = random.choice([np.nan, np.inf, -np.inf, 1e30, -1e30, 1.0], size)
    return torch.from_numpy(values).to(dtype)
