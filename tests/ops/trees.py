"""Steps of chunks with and without trees, and every line of a tree as a sequence of its own, for any implementation."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from archerfish.execution.step.inputs import StepTrees
from archerfish.ops.signatures import AttendOp, Chunks, LayerCache, Trees, WriteKvOp
from archerfish.speculation.draft import Draft


def random_tree(random: np.random.Generator, num_draft_tokens: int) -> Draft:
    """A tree of draft tokens that do not all follow each other."""
    while True:
        parents = tuple(int(random.integers(-1, node)) if node else -1 for node in range(num_draft_tokens))
        tree = Draft(tuple(range(num_draft_tokens)), parents)
        if not tree.is_chain:
            return tree


def bushy(num_draft_tokens: int) -> Draft:
    """A tree with two draft tokens after every one."""
    return Draft(tuple(range(num_draft_tokens)), tuple(node // 2 - 1 for node in range(num_draft_tokens)))


def deep(num_draft_tokens: int) -> Draft:
    """A long line, with one more draft token after its root."""
    return Draft(tuple(range(num_draft_tokens)), (-1, -1, *range(1, num_draft_tokens - 1)))


def lines(tree: Draft) -> list[list[int]]:
    """Return, for the first token and every draft token, the path to it among the tokens of the chunk."""
    return [[0, *(1 + node for node in tree.path(node))] for node in range(-1, len(tree))]


@dataclass(frozen=True)
class Tokens:
    """Of one sequence: keys and values of all, queries of its chunk, which begins at a position."""

    start: int
    q: Tensor
    k: Tensor
    v: Tensor
    tree: Draft | None = None

    def line(self, chosen: list[int]) -> "Tokens":
        """The sequence as it would be with these tokens of its chunk only."""
        key_tokens = [*range(self.start), *(self.start + token for token in chosen)]
        return Tokens(self.start, self.q[chosen], self.k[key_tokens], self.v[key_tokens])


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What runs a step: operations, and the caches they want."""

    write_kv: WriteKvOp
    attend: AttendOp
    cache: Callable[[int], LayerCache]
    """Of so many blocks, full of leftovers."""
    device: str = "cpu"

    def run(self, sequences: list[Tokens], window: int | None = None, softcap: float | None = None) -> list[Tensor]:
        """Keys and values are stored, then the chunks attend: what each gets."""
        ends, lengths = (np.array(each) for each in zip(*((len(s.k), len(s.q)) for s in sequences), strict=True))
        block_size = self.cache(1).keys.shape[1]
        num_blocks = -(-ends // block_size)
        blocks = np.random.default_rng(0).permutation(int(num_blocks.sum()) + 2)
        table = np.zeros((len(sequences), int(num_blocks.max())), np.int32)
        slots = []
        for place, (first, count) in enumerate(zip(np.cumsum(num_blocks) - num_blocks, num_blocks, strict=True)):
            table[place, :count] = blocks[first : first + count]
            positions = np.arange(ends[place])
            slots.append(table[place, positions // block_size] * np.int64(block_size) + positions % block_size)
        cache = self.cache(len(blocks))
        k, v = (torch.cat([getattr(s, name) for s in sequences]).to(self.device) for name in "kv")
        self.write_kv(k, v, cache, torch.from_numpy(np.concatenate(slots)).to(self.device))
        q = torch.cat([s.q for s in sequences]).to(self.device)
        chunks = self._chunks(lengths, ends, table, [s.tree for s in sequences])
        out = self.attend(q, cache, chunks, 0, q.shape[-1] ** -0.5, window, softcap)
        return list(out.split(lengths.tolist()))

    def _chunks(self, lengths: np.ndarray, ends: np.ndarray, table: np.ndarray, drafts: list[Draft | None]) -> Chunks:
        def on_device(values: np.ndarray) -> Tensor:
            return torch.from_numpy(values.astype(np.int32)).to(self.device)

        trees = StepTrees.of(lengths, drafts)
        return Chunks(
            query_starts=on_device(np.append(0, lengths.cumsum())),
            lengths=on_device(lengths),
            ends=on_device(ends),
            tables=(on_device(table),),
            slots=(),
            host_lengths=lengths,
            host_ends=ends,
            trees=None
            if trees is None
            else Trees(
                depths=on_device(trees.depths),
                paths=torch.from_numpy(trees.paths).to(self.device),
                host_depths=trees.depths,
            ),
        )


@dataclass(frozen=True, kw_only=True)
class Heads:
    num_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 16
    dtype: torch.dtype = torch.float32

    def tokens(self, seed: int, start: int, chunk: Draft | int) -> Tokens:
        """A chunk of a tree and the token it hangs on, or of so many tokens one after the other."""
        random = np.random.default_rng(seed)
        length = chunk if isinstance(chunk, int) else 1 + len(chunk)

        def noise(count: int, heads: int) -> Tensor:
            return torch.from_numpy(random.normal(size=(count, heads, self.head_dim))).to(self.dtype)

        k, v = (noise(start + length, self.num_kv_heads) for _ in range(2))
        tree = None if isinstance(chunk, int) else chunk
        return Tokens(start, noise(length, self.num_heads), k, v, tree)


def check_lines(
    machine: Machine,
    sequences: list[Tokens],
    check: Callable[[Tensor, Tensor], None],
    window: int | None = None,
    softcap: float | None = None,
    *,
    at_once: bool = False,
) -> None:
    """Every token gets what it would get if its sequence were its line alone; those without a tree what they would
    get without the others.

    Each line has a step of its own; `at_once` all have one, for whom every launch takes long.
    """
    alone = [_alone(sequence) for sequence in sequences]
    lines = [line for parts in alone for _, line in parts]
    steps = [lines] if at_once else [[line] for line in lines]
    wanted = iter([found for step in steps for found in machine.run(step, window, softcap)])
    for found, parts in zip(machine.run(sequences, window, softcap), alone, strict=True):
        assert found.isfinite().all()
        for rows, _ in parts:
            check(found[rows], next(wanted)[-len(found[rows]) :])


def _alone(sequence: Tokens) -> list[tuple[slice, Tokens]]:
    """Tokens of its chunk, each of a tree or else all of them, and the sequence as it leads to them."""
    if sequence.tree is None:
        return [(slice(None), sequence)]
    return [(slice(token, token + 1), sequence.line(line)) for token, line in enumerate(lines(sequence.tree))]
