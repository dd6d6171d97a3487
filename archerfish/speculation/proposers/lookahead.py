"""Guesses that the model makes for itself in passes it runs anyway: lookahead decoding. Knows no model, only its draws.

Beside the next token a pass draws some that lie ahead, after guesses that need not be right: Jacobi's iteration. A
window holds how they change from pass to pass. Each of its columns is a place ahead, with the token it begins with and
those drawn after that, one a pass. A full column is an n-gram the model itself might write; it goes to a pool, and
where the sequence comes to its first token the others are a guess. See arXiv 2402.02057.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from archerfish.speculation.draft import MOST_NODES, ROOT, Draft
from archerfish.speculation.proposer import Ask

POOL_HEADS = 1024
"""Tokens for which n-grams are kept; those that got none for longest are forgotten first."""

_ABSENT = -2  # No guess, and nothing hangs on it.


@dataclass(frozen=True, slots=True)
class Shape:
    """How much is looked at in a pass."""

    window: int
    ngram: int
    guesses: int

    def __post_init__(self) -> None:
        assert self.window >= 1 and self.ngram >= 2 and self.guesses >= 1
        assert self.num_nodes <= MOST_NODES, (
            f"{self} makes drafts of {self.num_nodes} guesses, {MOST_NODES} are the most"
        )

    @property
    def num_drawn(self) -> int:
        """Tokens of a full column after its first; with one more drawn after them they are an n-gram."""
        return self.ngram - 2

    @property
    def num_nodes(self) -> int:
        return self.window - 1 + self.window * self.num_drawn + self.guesses * (self.ngram - 1)


class NgramPool:
    """N-grams by their first token, a few for each."""

    def __init__(self, num_kept: int) -> None:
        self._num_kept = num_kept
        self._tails: OrderedDict[int, OrderedDict[tuple[int, ...], None]] = OrderedDict()

    def add(self, head: int, tail: tuple[int, ...]) -> None:
        """The oldest makes room. One that is there already becomes the newest."""
        tails = self._tails.setdefault(head, OrderedDict())
        self._tails.move_to_end(head)
        tails[tail] = None
        tails.move_to_end(tail)
        if len(tails) > self._num_kept:
            tails.popitem(last=False)
        if len(self._tails) > POOL_HEADS:
            self._tails.popitem(last=False)

    def tails(self, head: int) -> list[tuple[int, ...]]:
        """The newest first."""
        return list(reversed(self._tails.get(head, ())))


class _Tree:
    """A draft in the making, in which equal beginnings are one."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._tokens: list[int] = []
        self._parents: list[int] = []
        self._places: dict[tuple[int, int], int] = {}

    @property
    def num_draft_tokens(self) -> int:
        return len(self._tokens)

    @property
    def room(self) -> int:
        return self._most - self.num_draft_tokens

    def add(self, parent: int, tokens: Sequence[int]) -> int:
        """Hang a chain on a guess, as far as there is room. The last guess of it."""
        for token in tokens:
            known = self._places.get((parent, token))
            if known is None:
                if not self.room:
                    break
                known = self._places[parent, token] = len(self._tokens)
                self._tokens.append(token)
                self._parents.append(parent)
            parent = known
        return parent

    def draft(self) -> Draft:
        return Draft(tuple(self._tokens), tuple(self._parents))


class Column:
    """One place ahead: a token, and those drawn after it and after each other."""

    def __init__(self, first: int) -> None:
        self.first = first
        self.drawn: tuple[int, ...] = ()

    def push(self, token: int, most: int) -> None:
        """One more was drawn. Beyond the most there may be, the first one leaves."""
        if len(self.drawn) < most:
            self.drawn = (*self.drawn, token)
        else:
            self.first, *rest = (*self.drawn, token)
            self.drawn = tuple(rest)


class _Row:
    """One sequence: its window and its pool.

    The first column begins with the sequence's last token itself, so that its draws hang on ROOT. The others begin with
    guesses for the places after it, which hang on each other: the trunk. Whatever a pass writes, the columns move on by
    one token. They follow what the model would write, not the places of the sequence: if each token written took a
    column with it, none would ever be full.
    """

    def __init__(self, tokens: Sequence[int], shape: Shape, seed: int) -> None:
        self._shape = shape
        self._pool = NgramPool(shape.guesses)
        # Made up of tokens that are there: for a model they are nearer to its text than any others. While the window
        # fills, each pass takes the column that the sequence has passed.
        made_up = Random(seed).choices(tokens, k=shape.window + shape.num_drawn)
        self._columns = [Column(token) for token in made_up]
        self.come_to(tokens[-1])

    def come_to(self, last: int) -> None:
        self._columns[0].first = last

    def draft(self, most: int) -> Draft:
        tree = _Tree(most)
        columns = self._columns
        # However little room there is, half of it is for what brings new n-grams, beyond the newest of them.
        reserved = min(most // 2, len(columns) - 1 + sum(len(column.drawn) for column in columns))
        for tail in self._pool.tails(columns[0].first):
            if tree.num_draft_tokens and tree.room - len(tail) < reserved:
                break
            tree.add(ROOT, tail)
        # Where no column fits beside the first none is drawn: what is made up in the first is corrected by others only.
        if most > self._shape.num_drawn:
            self._hang_columns(tree)
        return tree.draft()

    def _hang_columns(self, tree: _Tree) -> None:
        trunk = ROOT
        for column in self._columns:
            is_first = column is self._columns[0]
            # Part of a column would bring nothing.
            if tree.room < len(column.drawn) + (not is_first):
                break
            trunk = ROOT if is_first else tree.add(trunk, [column.first])
            tree.add(trunk, column.drawn)

    def saw(self, draft: Draft, drawn: Sequence[int]) -> None:
        """Every column that the draft holds moves on by what was drawn after its last token."""
        guesses = zip(draft.parents, draft.tokens, strict=True)
        places = {guess: place for place, guess in enumerate(guesses)}
        last, path = self._columns[0].first, list[int]()
        for column in self._columns:
            if column is not self._columns[0]:
                path.append(column.first)
            node = ROOT
            for token in (*path, *column.drawn):
                node = places.get((node, token), _ABSENT)
            if node == _ABSENT:
                break
            following = drawn[node + 1]
            if len(column.drawn) == self._shape.num_drawn:
                self._pool.add(column.first, (*column.drawn, following))
            column.push(following, self._shape.num_drawn)
        if len(self._columns) > self._shape.window:
            del self._columns[0]
        self.come_to(last)


class LookaheadProposer:
    """A window and a pool for every row. A draft holds both: n-grams of the pool first, then the window's guesses."""

    surest = None

    def __init__(self, *, window: int = 7, ngram: int = 5, guesses: int = 7, seed: int = 0) -> None:
        """
        window: places ahead for which tokens are drawn.
        ngram: tokens of each n-gram, its first included.
        guesses: n-grams of the pool that are tried in a pass.
        seed: of the tokens that the first window is made up of.

        The defaults are the paper's for its largest model, where a pass has the least room for guesses.
        """
        self._shape = Shape(window, ngram, guesses)
        self._seed = seed
        self._rows: dict[int, _Row] = {}

    def start(self, row: int, tokens: Sequence[int], num_prompt_tokens: int, tenant: str) -> None:
        self._rows[row] = _Row(tokens, self._shape, self._seed)

    def extend(self, row: int, tokens: Sequence[int]) -> None:
        for last in tokens[-1:]:
            self._rows[row].come_to(last)

    def hints(self, row: int) -> bool:
        return True

    def propose(self, asks: Sequence[Ask]) -> list[Draft]:
        return [self._rows[ask.row].draft(min(ask.most, MOST_NODES)) for ask in asks]

    def saw(self, row: int, draft: Draft, drawn: Sequence[int]) -> None:
        self._rows[row].saw(draft, drawn)
