"""Paged attention in plain torch: an online softmax over tiles of keys, so that memory stays linear in length.

Prefill, decode and mixed batches are computed alike: chunks of equal length are stacked. Tokens of trees are stacked as
chunks of one token each, whose last keys are looked up along their paths.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from archerfish.ops.arrays import Ints
from archerfish.ops.signatures import Chunks, LayerCache, Trees

KEYS_PER_TILE = 256
QUERIES_PER_TILE = 256


class KeyPaths(NamedTuple):
    """The paths of some tree tokens, along which their last keys are stored."""

    roots: Tensor
    """[tokens] position of the first token of each one's tree."""
    paths: Tensor
    """[tokens, MAX_TREE_TOKENS] the path, as offsets from that position."""

    def stored_positions(self, positions: Tensor) -> Tensor:
        """Return where the keys at positions [tokens, keys] are stored. Past its end a path repeats its last token."""
        depths = positions - self.roots[: len(positions), None]
        along_path = self.paths[: len(positions)].gather(1, depths.clamp(0, self.paths.shape[1] - 1)).long()
        return torch.where(depths < 0, positions, self.roots[: len(positions), None] + along_path)


@dataclass(frozen=True, slots=True)
class EqualChunks:
    """Stacked chunks of one length: all decode tokens of a step, or a piece of a prompt.

    Sorted by context, longest first, so that chunks can be dropped at the end of their context.
    """

    indices: Tensor
    """[chunks] their indices among the step's chunks."""
    token_rows: Tensor
    """[chunks, length] rows of their tokens among the step's tokens."""
    starts: Tensor
    """[chunks] position of the first token of each."""
    ends: tuple[int, ...]
    """Context of each chunk, its own tokens included. On the host, where loops run over it."""
    paths: KeyPaths | None = None
    """Set for tokens of trees, which are chunks of one token here."""


def stack_equal(chunks: Chunks) -> tuple[EqualChunks, ...]:
    """Stack chunks of one length, longest context first. One copy to the device, however many lengths there are."""
    if chunks.trees is None:
        return _stack_plain(chunks, np.arange(len(chunks.host_ends)))
    firsts = np.cumsum(chunks.host_lengths) - chunks.host_lengths
    is_tree = chunks.trees.host_depths[firsts] >= 0
    return (*_stack_plain(chunks, np.flatnonzero(~is_tree)), _stack_tree_tokens(chunks, chunks.trees))


def _stack_plain(chunks: Chunks, chosen: Ints) -> tuple[EqualChunks, ...]:
    host_lengths, host_ends = chunks.host_lengths[chosen], chunks.host_ends[chosen]
    order = np.lexsort((-host_ends, host_lengths))
    indices = torch.from_numpy(chosen[order]).to(chunks.ends.device)
    first_rows = chunks.query_starts.long()[indices]
    starts = (chunks.ends - chunks.lengths).long()[indices]
    ends = host_ends[order].tolist()
    stacked, first = [], 0
    for length, count in zip(*(values.tolist() for values in np.unique_counts(host_lengths)), strict=True):
        stack = slice(first, first + count)
        stacked.append(
            EqualChunks(
                indices=indices[stack],
                token_rows=first_rows[stack, None] + torch.arange(length, device=indices.device),
                starts=starts[stack],
                ends=tuple(ends[stack]),
            )
        )
        first += count
    return tuple(stacked)


def _stack_tree_tokens(chunks: Chunks, trees: Trees) -> EqualChunks:
    """Stack all tokens of trees as chunks of one token, longest context first."""
    depths, lengths = trees.host_depths, chunks.host_lengths
    roots = np.repeat(chunks.host_ends - lengths, lengths)
    ends = roots + depths + 1
    tokens = np.flatnonzero(depths >= 0)
    tokens = tokens[np.argsort(-ends[tokens], kind="stable")]
    chunk_of_token = np.repeat(np.arange(len(lengths)), lengths)
    table = np.stack((chunk_of_token[tokens], tokens, ends[tokens] - 1, roots[tokens]))
    indices, rows, positions, firsts = torch.from_numpy(table).to(chunks.ends.device)
    return EqualChunks(
        indices, rows[:, None], positions, tuple(ends[tokens].tolist()), KeyPaths(firsts, trees.paths[rows])
    )


def attend(
    q: Tensor,
    cache: LayerCache,
    chunks: Chunks,
    group: int,
    scale: float,
    window: int | None,
    softcap: float | None,
) -> Tensor:
    out = torch.empty_like(q)
    for equal in chunks.prepared(stack_equal):
        length = equal.token_rows.shape[1]
        for first in range(0, length, QUERIES_PER_TILE):
            rows = equal.token_rows[:, first : first + QUERIES_PER_TILE]
            tile = _QueryTile(q[rows], cache.keys.shape[2], scale, softcap)
            tile.attend(cache, equal, chunks.tables[group], first, window)
            out[rows] = tile.result().to(q.dtype)
    return out


class _QueryTile:
    """Queries of equal chunks, [chunks, length, H, D], and the state of their online softmax.

    All tensors have the KV head first, so that gathering a tile of keys is its only copy.
    """

    def __init__(self, q: Tensor, num_kv_heads: int, scale: float, softcap: float | None) -> None:
        self.num_chunks, self.length, self.num_heads, self.head_dim = q.shape
        self.repeat = self.num_heads // num_kv_heads
        self.softcap = softcap
        # Query heads that share a KV head become rows of one matmul: [G, chunks, repeat * length, D].
        q = q.view(self.num_chunks, self.length, num_kv_heads, self.repeat, self.head_dim).float() * scale
        self.q = q.permute(2, 0, 3, 1, 4).reshape(num_kv_heads, self.num_chunks, -1, self.head_dim)
        rows = self.q.shape[:-1]
        self.peak = self.q.new_full(rows, -torch.inf)
        self.total = self.q.new_zeros(rows)
        self.sum = torch.zeros_like(self.q)

    def attend(self, cache: LayerCache, equal: EqualChunks, table: Tensor, first: int, window: int | None) -> None:
        block_size, device = cache.keys.shape[1], cache.keys.device
        blocks_per_tile = max(1, KEYS_PER_TILE // block_size)
        query_positions = equal.starts[:, None] + torch.arange(first, first + self.length, device=device)
        # Each chunk starts at the block where its first query's window begins: position 0 without one.
        oldest = torch.zeros_like(equal.starts)
        if window is not None:
            oldest = (query_positions[:, 0] - window + 1).clamp(min=0) // block_size
        # ... and ends with the block of its last query. Counted on the host: reading it from the device would wait.
        later = equal.token_rows.shape[1] - first - self.length
        furthest = []
        for end in (end - later for end in equal.ends):
            begin = 0 if window is None else max(0, end - self.length - window + 1) // block_size
            furthest.append(-(-end // block_size) - begin)
        offsets = torch.arange(block_size, device=device)
        for tile in range(0, max(furthest), blocks_per_tile):
            # Without a window chunks end in order, longest first. With one they may not, and all stay active.
            active = sum(blocks > tile for blocks in furthest) if window is None else self.num_chunks
            num_blocks = min(blocks_per_tile, max(furthest) - tile)
            blocks = oldest[:active, None] + torch.arange(tile, tile + num_blocks, device=device)
            key_positions = (blocks[:, :, None] * block_size + offsets).flatten(1)  # [active, keys]
            visible = key_positions[:, None, :] <= query_positions[:active, :, None]  # [active, length, keys]
            if window is not None:
                visible &= key_positions[:, None, :] > query_positions[:active, :, None] - window
            stored = _stored(equal, table, blocks, key_positions, block_size)
            keys = _gather(cache.keys, cache.key_scales, stored)
            self._add(keys, _gather(cache.values, cache.value_scales, stored), visible, active)

    def _add(self, keys: Tensor, values: Tensor, visible: Tensor, active: int) -> None:
        """Update the softmax with one tile of keys and values, [G, active, keys, D]."""
        # A block may hold numbers of another request, even NaN, which a weight of zero would not remove.
        values = values.masked_fill_(~visible.any(1)[:, :, None], 0.0)
        scores = self.q[:, :active] @ keys.transpose(2, 3)  # [G, active, repeat * length, keys]
        if self.softcap is not None:
            scores = torch.tanh(scores / self.softcap) * self.softcap
        scores = self._by_query(scores).masked_fill_(~visible[:, None], -torch.inf).flatten(2, 3)

        peak = torch.maximum(self.peak[:, :active], scores.amax(-1))
        safe_peak = peak.masked_fill(peak == -torch.inf, 0.0)  # A row without any visible key so far.
        weights = torch.exp(scores.sub_(safe_peak[..., None]))
        shrink = torch.exp(self.peak[:, :active] - safe_peak)
        self.total[:, :active] = self.total[:, :active] * shrink + weights.sum(-1)
        self.sum[:, :active] = self.sum[:, :active] * shrink[..., None] + weights @ values
        self.peak[:, :active] = peak

    def result(self) -> Tensor:
        """Return [chunks, length, H, D]."""
        out = self._by_query(self.sum / self.total[..., None])
        return out.permute(1, 3, 0, 2, 4).reshape(self.num_chunks, self.length, self.num_heads, self.head_dim)

    def _by_query(self, x: Tensor) -> Tensor:
        """Return [G, chunks, repeat, length, n] for [G, chunks, repeat * length, n]."""
        return x.view(*x.shape[:2], self.repeat, self.length, x.shape[-1])


def _stored(equal: EqualChunks, table: Tensor, blocks: Tensor, positions: Tensor, size: int) -> tuple[Tensor, ...]:
    """Return where a tile is stored: blocks [active, blocks], or for trees blocks and offsets [active, keys]."""
    chunks = equal.indices[: len(blocks), None]
    if equal.paths is None:
        return (table[chunks, blocks.clamp(max=table.shape[1] - 1)].long(),)
    stored = equal.paths.stored_positions(positions)
    return table[chunks, (stored // size).clamp(max=table.shape[1] - 1)].long(), stored % size


def _gather(numbers: Tensor, scales: Tensor | None, stored: tuple[Tensor, ...]) -> Tensor:
    """Return the stored numbers of [N, B, G, D] as [G, active, keys, D] float32."""
    of_all_heads: tuple[slice | Tensor, ...] = (slice(None), *stored)
    gathered = numbers.permute(2, 0, 1, 3)[of_all_heads].flatten(2, -2).float()
    if scales is not None:
        gathered *= scales.permute(2, 0, 1)[of_all_heads].flatten(2)[..., None]
    return gathered
