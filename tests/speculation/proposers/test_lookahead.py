"""Lookahead against a window updated the long way, and against models that write what the test decides."""

from collections.abc import Callable, Iterator, Sequence
from random import Random

import pytest

from archerfish.speculation.draft import MAX_NODES, NO_DRAFT, ROOT, Draft
from archerfish.speculation.proposer import DraftRequest
from archerfish.speculation.proposers.lookahead import MAX_POOL_HEADS, LookaheadProposer, LookaheadShape, NgramPool

Model = Callable[[Sequence[int]], int]
Path = tuple[int, ...]


def draws(model: Model, text: Sequence[int], draft: Draft) -> list[int]:
    """Return what a pass draws after the text's last token and after every draft token."""
    paths = [ROOT, *range(len(draft))]
    return [model([*text, *(draft.tokens[node] for node in draft.path(place))]) for place in paths]


def accepted_tokens(draft: Draft, drawn: Sequence[int]) -> list[int]:
    """Return what a pass writes: accepted draft tokens, and the token drawn after the last of them."""
    node, written = ROOT, [drawn[0]]
    while fits := [child for child in draft.children(node) if draft.tokens[child] == written[-1]]:
        node = fits[0]
        written.append(drawn[node + 1])
    return written


def paths(draft: Draft) -> set[Path]:
    return {tuple(draft.tokens[node] for node in draft.path(place)) for place in range(len(draft))}


def prefixes(path: Path) -> set[Path]:
    return {path[:length] for length in range(1, len(path) + 1)}


def write(
    proposer: LookaheadProposer, model: Model, text: list[int], num_passes: int, most: int = MAX_NODES
) -> list[int]:
    """Grow the text. How many tokens each pass wrote."""
    counts = []
    proposer.start(0, text, len(text), "tenant")
    for _ in range(num_passes):
        (draft,) = proposer.propose([DraftRequest(0, most)])
        assert len(draft) <= most
        drawn = draws(model, text, draft)
        written = accepted_tokens(draft, drawn)
        assert written == [model([*text, *written[:at]]) for at in range(len(written))]
        proposer.observe(0, draft, drawn)
        proposer.extend(0, written)
        text += written
        counts.append(len(written))
    return counts


def hashed(context: Sequence[int]) -> int:
    """A text of few tokens that the last two decide."""
    return (context[-1] * 7 + context[-2] * 13 + context[-1] * context[-2]) % 11


def periodic(context: Sequence[int]) -> int:
    return (context[-1] + 1) % 9


class LongWay:
    """The paper's window as levels of tokens that are shifted and recomputed whole, and a pool that forgets nothing."""

    def __init__(self, heads: Sequence[int], window: int, ngram: int) -> None:
        self.window, self.ngram = window, ngram
        self.levels = [list(heads)]
        """[level][column]; what stands in the first column of the first level is never read."""
        self.pool: dict[int, list[Path]] = {}

    def columns(self) -> list[Path]:
        """For every column the path that leads to its last token."""
        trunk, *later = self.levels
        return [
            (*trunk[1 : at + 1], *(level[at] for level in later)) for at in range(len(later[-1] if later else trunk))
        ]

    def expected(self, last: int, max_ngrams: int) -> set[Path]:
        known = self.pool.get(last, [])[-max_ngrams:]
        return set().union(*(prefixes(path) for path in [*self.columns(), *known]))

    def advance(self, model: Model, text: Sequence[int]) -> None:
        drawn = [model([*text, *path]) for path in self.columns()]
        if len(self.levels) < self.ngram - 1:
            self.levels = [level[1:] for level in [*self.levels, drawn]]
            return
        for at, token in enumerate(drawn):
            first = self.levels[0][at] if at else text[-1]
            tail = (*(level[at] for level in self.levels[1:]), token)
            tails = self.pool.setdefault(first, [])
            if tail in tails:
                tails.remove(tail)
            tails.append(tail)
        self.levels = [*self.levels[1:], drawn]


@pytest.mark.parametrize(("window", "ngram", "max_ngrams"), [(7, 5, 7), (4, 3, 5), (5, 2, 3), (1, 4, 2)])
def test_the_window_moves_on_as_jacobi_says(window: int, ngram: int, max_ngrams: int) -> None:
    for proposer, long_way, text in compared_with_the_long_way(window, ngram, max_ngrams):
        (draft,) = proposer.propose([DraftRequest(0, MAX_NODES)])
        assert paths(draft) == long_way.expected(text[-1], max_ngrams)


def compared_with_the_long_way(
    window: int, ngram: int, max_ngrams: int
) -> Iterator[tuple[LookaheadProposer, LongWay, list[int]]]:
    """Before each pass: the proposer, the long way, and the text so far, which grows by one token a pass or more."""
    proposer = LookaheadProposer(window=window, ngram=ngram, num_ngrams=max_ngrams, seed=3)
    text = [Random(5).randrange(11) for _ in range(20)]
    proposer.start(0, text, len(text), "tenant")
    long_way = LongWay(Random(3).choices(text, k=window + ngram - 2), window, ngram)
    for _ in range(30):
        yield proposer, long_way, text
        (draft,) = proposer.propose([DraftRequest(0, MAX_NODES)])
        drawn = draws(hashed, text, draft)
        proposer.observe(0, draft, drawn)
        long_way.advance(hashed, text)
        written = accepted_tokens(draft, drawn)
        text += written
        proposer.extend(0, written)


def test_with_little_room_the_newest_n_gram_comes_before_the_window_and_the_window_before_others() -> None:
    tested = 0
    for proposer, long_way, text in compared_with_the_long_way(7, 5, 7):
        known = long_way.pool.get(text[-1], [])
        if len(known) > 2:
            (draft,) = proposer.propose([DraftRequest(0, 8)])
            assert known[-1] in paths(draft) and long_way.columns()[0] in paths(draft)
            tested += 1
    assert tested


def test_a_pass_that_wrote_nothing_leaves_the_last_token_where_it_is() -> None:
    proposer, text = LookaheadProposer(), [1, 2, 3]
    write(proposer, periodic, text, 40)
    (draft,) = proposer.propose([DraftRequest(0, 20)])
    proposer.observe(0, draft, draws(periodic, text, draft))
    proposer.extend(0, [])
    (again,) = proposer.propose([DraftRequest(0, 20)])
    assert again.tokens[0] == periodic(text)


@pytest.mark.parametrize("model", [periodic, hashed])
def test_texts_that_a_few_tokens_decide_are_written_several_at_a_pass(model: Model) -> None:
    counts = write(LookaheadProposer(), model, [1, 2, 3], 60)
    assert sum(counts[20:]) > 1.5 * len(counts[20:])


def test_n_grams_that_repeat_are_written_whole() -> None:
    proposer = LookaheadProposer(window=6, ngram=4, num_ngrams=4)
    counts = write(proposer, periodic, [1, 2, 3], 40)
    assert min(counts[-10:]) >= 4


@pytest.mark.parametrize("most", [4, 10, 20])
def test_with_little_room_a_draft_is_what_fits_and_still_helps(most: int) -> None:
    counts = write(LookaheadProposer(), periodic, [1, 2, 3], 60, most)
    assert 1 < max(counts) <= most + 1


def test_where_no_column_fits_only_the_pool_is_used() -> None:
    proposer, text = LookaheadProposer(), [1, 2, 3]
    assert write(proposer, periodic, text, 20, 3) == [1] * 20
    assert proposer.propose([DraftRequest(0, 3)]) == [NO_DRAFT]
    write(proposer, periodic, text, 40)
    (draft,) = proposer.propose([DraftRequest(0, 3)])
    assert draft.is_chain and len(draft) == 3 and draft.tokens[0] == periodic(text)


def test_n_grams_of_the_pool_come_before_the_window() -> None:
    proposer = LookaheadProposer()
    text = [1, 2, 3]
    write(proposer, periodic, text, 40)
    (whole,), (small,) = proposer.propose([DraftRequest(0, MAX_NODES)]), proposer.propose([DraftRequest(0, 4)])
    first = whole.children(ROOT)[0]
    assert first == 0 and whole.tokens[0] == periodic(text)
    assert small.is_chain and small.tokens == whole.tokens[:4]


def test_asking_changes_nothing_and_rows_are_apart() -> None:
    proposer = LookaheadProposer()
    alone = LookaheadProposer()
    write(alone, hashed, text := [1, 2, 3], 10)
    write(proposer, hashed, [1, 2, 3], 10)
    proposer.start(1, [9, 8, 7], 3, "tenant")
    other, again = proposer.propose([DraftRequest(1, 20), DraftRequest(0, 20)])
    assert proposer.propose([DraftRequest(0, 20), DraftRequest(1, 20)]) == [again, other]
    assert alone.propose([DraftRequest(0, 20)]) == [again]
    alone.start(0, text, 3, "tenant")
    assert alone.propose([DraftRequest(0, 20)]) != [again]


def test_a_pool_retains_the_newest_of_each_token() -> None:
    pool = NgramPool(2)
    for tail in [(1, 2), (3, 4), (1, 2), (5, 6)]:
        pool.add(9, tail)
    assert pool.tails(9) == [(5, 6), (1, 2)] and pool.tails(8) == []


def test_a_pool_forgets_tokens_it_heard_nothing_of_for_longest() -> None:
    pool = NgramPool(2)
    for head in [*range(MAX_POOL_HEADS), 0, MAX_POOL_HEADS]:
        pool.add(head, (1,))
    assert pool.tails(0) and not pool.tails(1) and pool.tails(2) and pool.tails(MAX_POOL_HEADS)


def test_shapes_that_make_no_draft_are_refused() -> None:
    assert LookaheadShape(7, 5, 7).num_nodes == 55
    with pytest.raises(AssertionError, match="drafts of 67 tokens, the limit is 63"):
        LookaheadProposer(window=10, num_ngrams=7)
    with pytest.raises(AssertionError):
        LookaheadProposer(ngram=1)
