"""Lookahead decoding: draft tokens that the model itself samples in passes it runs anyway.

Besides the next token a pass samples some that lie ahead, after tokens that need not be right (Jacobi iteration). A
window records how they change from pass to pass. Each of its columns is a position ahead, with its first token and
those sampled after that, one per pass. A full column is an n-gram that the model itself might write; it goes to a pool,
and where the sequence comes to its first token the others are draft tokens. See arXiv 2402.02057.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from archerfish.speculation.draft import MAX_NODES, ROOT, Draft
from archerfish.speculation.proposer import DraftRequest

MAX_POOL_HEADS = 1024
"""First tokens for which n-grams are stored; the least recently extended are evicted first."""

_ABSENT = -2  # No node, and no parent of any.


@dataclass(frozen=True, slots=True)
class LookaheadShape:
    """The sizes of a pass."""

    window: int
    ngram: int
    num_ngrams: int

    def __post_init__(self) -> None:
        assert self.window >= 1 and self.ngram >= 2 and self.num_ngrams >= 1
        assert self.num_nodes <= MAX_NODES, f"{self} makes drafts of {self.num_nodes} tokens, the limit is {MAX_NODES}"

    @property
    def num_sampled(self) -> int:
        """Tokens of a full column after its first; with one more sampled after them they are an n-gram."""
        return self.ngram - 2

    @property
    def num_nodes(self) -> int:
        return self.window - 1 + self.window * self.num_sampled + self.num_ngrams * (self.ngram - 1)


class NgramPool:
    """N-grams by their first token, a few for each."""

    def __init__(self, max_per_head: int) -> None:
        self._max_per_head = max_per_head
        self._tails: OrderedDict[int, OrderedDict[tuple[int, ...], None]] = OrderedDict()

    def add(self, head: int, tail: tuple[int, ...]) -> None:
        """Add an n-gram as the newest one, and evict the oldest beyond the limits."""
        tails = self._tails.setdefault(head, OrderedDict())
        self._tails.move_to_end(head)
        tails[tail] = None
        tails.move_to_end(tail)
        if len(tails) > self._max_per_head:
            tails.popitem(last=False)
        if len(self._tails) > MAX_POOL_HEADS:
            self._tails.popitem(last=False)

    def tails(self, head: int) -> list[tuple[int, ...]]:
        """Return the n-grams that begin with a token, without it, the newest first."""
        return list(reversed(self._tails.get(head, ())))


class _DraftTree:
    """A draft under construction, in which equal prefixes are shared."""

    def __init__(self, max_tokens: int) -> None:
        self._max_tokens = max_tokens
        self._tokens: list[int] = []
        self._parents: list[int] = []
        self._nodes: dict[tuple[int, int], int] = {}

    @property
    def num_tokens(self) -> int:
        return len(self._tokens)

    @property
    def num_free(self) -> int:
        return self._max_tokens - self.num_tokens

    def add(self, parent: int, tokens: Sequence[int]) -> int:
        """Add a chain below a node, as far as tokens are free, and return its last node."""
        for token in tokens:
            node = self._nodes.get((parent, token))
            if node is None:
                if not self.num_free:
                    break
                node = self._nodes[parent, token] = len(self._tokens)
                self._tokens.append(token)
                self._parents.append(parent)
            parent = node
        return parent

    def draft(self) -> Draft:
        return Draft(tuple(self._tokens), tuple(self._parents))


class LookaheadColumn:
    """One position ahead: a token, and those sampled after it and after each other."""

    def __init__(self, first: int) -> None:
        self.first = first
        self.sampled: tuple[int, ...] = ()

    def push(self, token: int, max_sampled: int) -> None:
        """Append a sampled token. Beyond the limit the first one leaves."""
        if len(self.sampled) < max_sampled:
            self.sampled = (*self.sampled, token)
        else:
            self.first, *rest = (*self.sampled, token)
            self.sampled = tuple(rest)


class _Row:
    """The window and the pool of one sequence.

    The first column begins with the sequence's last token itself, so that its tokens are children of ROOT. The others
    begin with tokens for the positions after it, which follow each other: the trunk. Whatever a pass writes, the
    columns move on by one token. They follow what the model would write, not the positions of the sequence: if each
    token written took a column with it, none would ever be full.
    """

    def __init__(self, tokens: Sequence[int], shape: LookaheadShape, seed: int) -> None:
        self._shape = shape
        self._pool = NgramPool(shape.num_ngrams)
        # Initialized with tokens of the sequence: for a model they are nearer to its text than any others. While the
        # window fills, each pass drops the column that the sequence has passed.
        initial = Random(seed).choices(tokens, k=shape.window + shape.num_sampled)
        self._columns = [LookaheadColumn(token) for token in initial]
        self.set_last(tokens[-1])

    def set_last(self, last: int) -> None:
        """Set the sequence's last token."""
        self._columns[0].first = last

    def draft(self, max_tokens: int) -> Draft:
        tree = _DraftTree(max_tokens)
        columns = self._columns
        # However few tokens there are, half of them are for what yields new n-grams, beyond the newest of them.
        reserved = min(max_tokens // 2, len(columns) - 1 + sum(len(column.sampled) for column in columns))
        for tail in self._pool.tails(columns[0].first):
            if tree.num_tokens and tree.num_free - len(tail) < reserved:
                break
            tree.add(ROOT, tail)
        # If no column fits besides the first, none is drafted: initial tokens of the first are replaced by others only.
        if max_tokens > self._shape.num_sampled:
            self._add_columns(tree)
        return tree.draft()

    def _add_columns(self, tree: _DraftTree) -> None:
        trunk = ROOT
        for column in self._columns:
            is_first = column is self._columns[0]
            # Part of a column would yield nothing.
            if tree.num_free < len(column.sampled) + (not is_first):
                break
            trunk = ROOT if is_first else tree.add(trunk, [column.first])
            tree.add(trunk, column.sampled)

    def observe(self, draft: Draft, sampled: Sequence[int]) -> None:
        """Move every column of the draft on by what was sampled after its last token."""
        nodes = {edge: node for node, edge in enumerate(zip(draft.parents, draft.tokens, strict=True))}
        last, path = self._columns[0].first, list[int]()
        for column in self._columns:
            if column is not self._columns[0]:
                path.append(column.first)
            node = ROOT
            for token in (*path, *column.sampled):
                node = nodes.get((node, token), _ABSENT)
            if node == _ABSENT:
                break
            following = sampled[node + 1]
            if len(column.sampled) == self._shape.num_sampled:
                self._pool.add(column.first, (*column.sampled, following))
            column.push(following, self._shape.num_sampled)
        if len(self._columns) > self._shape.window:
            del self._columns[0]
        self.set_last(last)


class LookaheadProposer:
    """A window and a pool for every row. A draft has n-grams of the pool first, then the window's tokens."""

    def __init__(self, *, window: int = 7, ngram: int = 5, num_ngrams: int = 7, seed: int = 0) -> None:
        """
        window: positions ahead for which tokens are sampled.
        ngram: tokens of each n-gram, its first included.
        num_ngrams: n-grams of the pool that are drafted in a pass.
        seed: seed of the tokens that the first window is initialized with.

        The defaults are the paper's for its largest model, where a pass has the fewest tokens to spare.
        """
        self._shape = LookaheadShape(window, ngram, num_ngrams)
        self._seed = seed
        self._rows: dict[int, _Row] = {}

    def start(self, row: int, tokens: Sequence[int], num_prompt_tokens: int, tenant: str) -> None:
        self._rows[row] = _Row(tokens, self._shape, self._seed)

    def extend(self, row: int, tokens: Sequence[int]) -> None:
        for last in tokens[-1:]:
            self._rows[row].set_last(last)

    def has_hint(self, row: int) -> bool:
        return True

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        return [self._rows[request.row].draft(min(request.max_tokens, MAX_NODES)) for request in requests]

    def observe(self, row: int, draft: Draft, sampled: Sequence[int]) -> None:
        self._rows[row].observe(draft, sampled)
