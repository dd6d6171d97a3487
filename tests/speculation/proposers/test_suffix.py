"""Copies: how long they are, where they come from, and whose they are not."""

from collections.abc import Sequence
from math import prod

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from archerfish.speculation.draft import MAX_NODES, NO_DRAFT, ROOT, Draft
from archerfish.speculation.proposer import DraftRequest
from archerfish.speculation.proposers import suffix
from archerfish.speculation.proposers.suffix import MAX_FOLLOWERS, CopyEndModel, Match, SuffixProposer
from archerfish.speculation.proposers.suffix_automaton import EMPTY, SuffixAutomaton

PROSE = list(range(100, 140))
WIDE = 0.001
"""A chance that every copy has: drafts as long as they may be."""


REPEATED = [900_000, 900_001, 900_000, 900_001]


def started(tokens: Sequence[int], **options: bool | float) -> SuffixProposer:
    """In a text of which something has been repeated before."""
    proposer = SuffixProposer(**options)  # type: ignore[arg-type]
    proposer.start(0, REPEATED, len(REPEATED), "tenant")
    proposer.extend(0, tokens)
    return proposer


def propose(proposer: SuffixProposer, row: int = 0, most: int = MAX_NODES) -> Draft:
    (draft,) = proposer.propose([DraftRequest(row, most)])
    return draft


def observe_draft(proposer: SuffixProposer, draft: Draft, *, right: bool, row: int = 0) -> None:
    """Report a pass in which every draft token of a chain is accepted, or none."""
    assert draft.is_chain
    proposer.observe(row, draft, [*draft.tokens, -1] if right else [-1] * (1 + len(draft)))


def searched(text: Sequence[int], shortest: int) -> list[int]:
    """What followed the latest of the longest matches, by looking at all of them; the text follows itself."""
    for length in range(len(text) - 1, shortest - 1, -1):
        for end in range(len(text) - 1, length - 1, -1):
            if text[end - length : end] == text[-length:]:
                return [*text[end:], *text[end:]]
    return []


def test_what_followed_the_longest_match_follows_again() -> None:
    proposer = started([*PROSE, 7, 8, 9, *PROSE[:10]])
    assert propose(proposer).tokens[:9] == tuple(PROSE[10:19])
    assert propose(proposer, most=4) == Draft.chain(PROSE[10:14])
    assert propose(started([*PROSE, 50])) == NO_DRAFT and propose(started([3])) == NO_DRAFT


@given(st.lists(st.integers(0, 5), min_size=1, max_size=40).filter(lambda text: len(set(text)) > 1))
def test_where_a_match_occurred_once_the_copy_is_what_a_search_finds(text: list[int]) -> None:
    draft = propose(started(text, min_length=2, min_probability=WIDE), most=1)
    found = searched(text, 2)
    assert bool(len(draft)) == bool(found)
    length = max((n for n in range(1, len(text)) if found and occurrences(text, text[-n:]) > 1), default=0)
    if found and occurrences(text, text[-length:]) == 2:
        assert draft.tokens[0] == found[0]


def occurrences(text: list[int], string: list[int]) -> int:
    return sum(text[at : at + len(string)] == string for at in range(len(text)))


def test_what_follows_most_often_comes_first_and_of_as_often_the_latest() -> None:
    often = started([1, 2, 5, 1, 2, 6, 1, 2, 5, 1, 2, 7, 1, 2], min_probability=WIDE)
    assert propose(often, most=1).tokens == (5,)
    latest = started([1, 2, 5, 1, 2, 6, 1, 2], min_probability=WIDE)
    assert propose(latest, most=1).tokens == (6,)


def test_until_a_pair_of_tokens_comes_again_nothing_is_looked_for() -> None:
    proposer = SuffixProposer()
    proposer.start(0, [5, 6, 7, 5], 4, "tenant")
    assert propose(proposer) == NO_DRAFT
    proposer.extend(0, [6])
    assert propose(proposer).tokens[0] == 7
    proposer.extend(0, [8, 5])
    assert propose(proposer).tokens[0] == 6, "from then on one token is enough"


def test_a_hint_is_a_pair_of_tokens_that_came_before() -> None:
    proposer = SuffixProposer(shared=True)
    proposer.start(0, [5, 6, 7, 5], 4, "tenant")
    assert not proposer.has_hint(0)
    hints = []
    for token in (6, 9, 6, 7, 3):
        proposer.extend(0, [token])
        hints.append(proposer.has_hint(0))
    assert hints == [True, False, False, True, False], "5 6 and 6 7"
    proposer.start(1, [1, 2], 2, "tenant")
    assert not proposer.has_hint(1)
    proposer.extend(1, [6, 7])
    assert proposer.has_hint(1), "another sequence wrote it"


def test_a_short_match_makes_a_short_draft_and_a_long_one_a_long() -> None:
    lengths = [len(propose(started([*PROSE, 7, *PROSE[:length]]))) for length in (1, 2, 4)]
    # A draft stands with a chance of one in four at least: three times its match, where doubt is one.
    assert lengths == [3, 6, 12]


def test_a_line_that_repeats_is_drafted_beyond_the_end_of_the_text() -> None:
    line = [4, 5, 6]
    assert propose(started(line * 20, min_probability=WIDE), most=12) == Draft.chain(line * 4)


def test_where_a_copy_comes_to_the_end_of_its_text_it_goes_on_as_a_shorter_match() -> None:
    # One of two, then two of three, then one of two again: one in six.
    assert propose(started([5, 6, 5])) == Draft.chain([6, 5])
    assert len(propose(started([5, 6, 5], min_probability=0.16))) == 3


@given(st.lists(st.integers(0, 2), max_size=30), st.lists(st.integers(0, 2), max_size=15))
def test_reading_along_a_text_finds_the_longest_suffix_that_occurs_in_it(text: list[int], read: list[int]) -> None:
    automaton = SuffixAutomaton()
    automaton.extend(EMPTY, text)
    match = Match(automaton, EMPTY, 0)
    for token in read:
        match = match.read(token)
    assert match.length == next(n for n in range(len(read), -1, -1) if not n or occurrences(text, read[-n:]))


def test_shortest_is_the_least_match() -> None:
    text = [*PROSE, 7, *PROSE[:3]]
    assert len(propose(started(text, min_length=3))) and not len(propose(started(text, min_length=4)))


def test_a_string_with_many_followers_predicts_nothing() -> None:
    ways = [token for way in range(MAX_FOLLOWERS + 1) for token in (1, 1000 + way)]
    assert propose(started([*ways, 1], min_probability=WIDE, branches=8)) == NO_DRAFT
    assert len(propose(started([*ways[2:], 1], min_probability=WIDE, branches=8), most=8)) == 8


def test_drafts_grow_where_copies_go_well_and_shrink_where_they_fail() -> None:
    text = [*PROSE, 7, *PROSE[:4]]
    good, bad = started(text), started(text)
    first = propose(good)
    observe_draft(good, first, right=True)
    observe_draft(bad, first, right=False)
    assert len(propose(bad)) < len(first) < len(propose(good))
    for _ in range(100):
        observe_draft(bad, first, right=False)
    assert not propose(bad)
    bad.extend(0, PROSE[4:20])
    assert len(propose(bad)) > 1, "a long match is trusted again"


def test_what_is_learned_is_the_rows_own_and_new_rows_begin_with_a_little_of_it() -> None:
    text = [*PROSE, 7, *PROSE[:4]]
    proposer = started(text)
    proposer.start(1, text, len(text), "tenant")
    first = propose(proposer)
    observe_draft(proposer, first, right=False)
    proposer.start(2, text, len(text), "tenant")
    assert len(propose(proposer)) < len(propose(proposer, 1)) == len(propose(proposer, 2)) < len(first)
    for _ in range(200):
        proposer.start(0, text, len(text), "tenant")
        observe_draft(proposer, first, right=False)
    proposer.start(2, text, len(text), "tenant")
    assert len(propose(proposer, 2)) == 1
    for _ in range(200):
        proposer.start(0, text, len(text), "tenant")
        observe_draft(proposer, first, right=True)
    proposer.start(2, text, len(text), "tenant")
    assert len(propose(proposer, 2)) > len(first)


def known(proposer: SuffixProposer) -> list[float]:
    """Doubts of the first row, and in matches as short as six tokens."""
    return [proposer._rows[0].doubt, proposer._ends.odds[6]]


@pytest.mark.parametrize("branches", [1, 2])
def test_unverified_drafts_are_learned_from_by_what_was_written_instead(branches: int) -> None:
    text = [*PROSE, *PROSE[:6]]
    fits, fails = (started(text, branches=branches) for _ in range(2))
    before = known(fits)
    assert propose(fits) == propose(fails)
    fits.extend(0, PROSE[6:9])
    fails.extend(0, [7, 8])
    for fitted, at_first, failed in zip(known(fits), before, known(fails), strict=True):
        assert fitted < at_first < failed
    learned = known(fits)
    fits.extend(0, [5])
    assert known(fits) == learned, "once"
    checked = started(text, branches=branches)
    draft = propose(checked)
    checked.observe(0, draft, [*draft.tokens, -1])
    learned = known(checked)
    checked.extend(0, [*draft.tokens, 5])
    assert known(checked) == learned, "and not of what was checked"


def test_at_which_length_copies_end_is_learned_of_all() -> None:
    """Where none ends early, a short match is believed: what ends far behind says nothing of it."""
    ends = CopyEndModel()
    for _ in range(200):
        ends.learn(1, 39, True, 1.0)
    assert ends.odds[1] < 0.1 and ends.odds[8] < 0.02 < 0.1 < ends.odds[40]
    probabilities = [1 / (1 + odds) for odds in ends.odds[1:32]]
    assert prod(probabilities) > 0.5 > prod(1 / (1 + odds) for odds in CopyEndModel().odds[1:32])
    for _ in range(200):
        ends.learn(1, 0, True, 1.0)
    assert ends.odds[1] > 1 and ends.odds[8] < 0.02


def test_branches_are_how_a_text_went_on_with_common_prefixes_merged() -> None:
    text = [1, 2, 3, 4, 5, 9, 1, 2, 3, 4, 6, 9, 1, 2, 3, 8, 1, 2]
    chain = propose(started(text, min_probability=WIDE), most=3)
    assert chain.is_chain and chain.tokens[0] == 3
    tree = propose(started(text, min_probability=0.05, branches=3), most=12)
    paths = {tuple(tree.tokens[node] for node in tree.path(place)) for place in range(len(tree))}
    assert {(3,), (3, 4), (3, 8), (3, 4, 6), (3, 4, 5)} <= paths and len(paths) == len(tree)
    assert [tree.tokens[child] for child in tree.children(0)] == [4, 8], "what is likelier stands first"
    assert propose(started(text, min_probability=0.05, branches=3), most=2).tokens == (3, 4)


@settings(deadline=None)
@given(st.lists(st.integers(0, 5), min_size=2, max_size=60), st.sampled_from([0.05, 0.25, 0.5]), st.integers(1, 20))
def test_a_chain_is_a_tree_with_a_single_branch(text: list[int], least: float, most: int) -> None:
    proposer = started(text, min_probability=least)
    chain, row = propose(proposer, most=most), proposer._rows[0]
    if (match := row.match()).length:
        tree = suffix._TreeGrowth(match.text, proposer._ends.odds, row.doubt, 1, least).grow(match, most)
        assert chain == tree and chain.probabilities == pytest.approx(tree.probabilities)


def test_of_a_tree_the_branch_that_was_drawn_counts() -> None:
    text = [1, 2, *PROSE[:15], 1, 2, *PROSE[20:35], 1, 2]
    right, wrong = started(text, min_probability=0.1, branches=2), started(text, min_probability=0.1, branches=2)
    tree = propose(right)
    drawn = [-1] * (1 + len(tree))
    wrong.observe(0, tree, drawn)
    node = ROOT
    while children := tree.children(node):
        drawn[node + 1] = tree.tokens[children[-1]]
        node = children[-1]
    assert tree.tokens[node] in PROSE[:15], "the branch of the earlier occurrence, which stands behind the other"
    right.observe(0, tree, drawn)
    assert len(propose(wrong)) < len(tree) < len(propose(right))


def test_asking_changes_nothing() -> None:
    proposer = started([*PROSE, *PROSE[:5]], branches=2, shared=True)
    requests = [DraftRequest(0, 10), DraftRequest(0, 3), DraftRequest(0, 0)]
    drafts = proposer.propose(requests)
    assert drafts == proposer.propose(requests) and [len(draft) for draft in drafts] == [10, 3, 0]


# -- what others of the tenant wrote ----------------------------------------------------------------------------------


def served(*answers: Sequence[int], tenant: str = "tenant", **options: bool | float) -> SuffixProposer:
    proposer = SuffixProposer(shared=True, **options)  # type: ignore[arg-type]
    for row, answer in enumerate(answers, start=1):
        proposer.start(row, [row], 1, tenant)
        proposer.extend(row, answer)
    proposer.start(0, [0], 1, "tenant")
    return proposer


def test_what_another_sequence_wrote_is_copied_while_it_still_writes() -> None:
    proposer = served(PROSE[:6])
    proposer.extend(0, PROSE[:3])
    assert propose(proposer).tokens == tuple(PROSE[3:6])
    proposer.extend(1, PROSE[6:20])
    assert propose(proposer).tokens[:5] == tuple(PROSE[3:8])
    assert propose(proposer, row=1) == NO_DRAFT, "no other wrote further than it"


def test_sequences_that_write_by_turns_are_separate() -> None:
    proposer = served([], [])
    for first, second in zip(PROSE[:20], PROSE[20:], strict=True):
        proposer.extend(1, [first])
        proposer.extend(2, [second])
    proposer.extend(0, PROSE[4:8])
    assert propose(proposer, most=8) == Draft.chain(PROSE[8:16])


def test_no_tenant_sees_what_another_wrote_nor_anyone_a_prompt() -> None:
    proposer = served(PROSE, tenant="another")
    proposer.start(5, PROSE[::-1], len(PROSE), "tenant")
    proposer.extend(0, PROSE[:5])
    assert propose(proposer) == NO_DRAFT
    proposer.extend(0, PROSE[20:10:-1])
    assert propose(proposer) == NO_DRAFT


def test_the_own_text_is_copied_unless_another_matches_longer() -> None:
    proposer = served([7, 1, 2, 50, 51, 52])
    proposer.start(0, [8, 1, 2, 60, 61, 62, 8], 7, "tenant")
    proposer.extend(0, [1, 2])
    assert propose(proposer).tokens[0] == 60
    proposer.start(0, [1, 2, 60, 61, 62], 5, "tenant")
    proposer.extend(0, [1, 2])
    assert propose(proposer).tokens[0] == 60, "as long a match of its own comes first"
    proposer.start(0, [1, 2, 60, 61, 62], 5, "tenant")
    proposer.extend(0, [7, 1, 2])
    assert propose(proposer).tokens[0] == 50


def test_what_was_written_before_a_preemption_is_found_again() -> None:
    proposer = served(PROSE)
    proposer.start(0, [0, *PROSE[:6]], 1, "tenant")
    assert propose(proposer).tokens[:4] == tuple(PROSE[6:10])


def test_memory_is_bounded_and_what_was_written_last_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suffix, "MAX_SHARED_TOKENS", 80)
    proposer = served(PROSE[:30], range(200, 230))
    proposer.extend(0, PROSE[:3])
    assert propose(proposer).tokens[:3] == tuple(PROSE[3:6]), "the old generation is still searched"
    proposer.extend(0, [*range(300, 337), 200, 201])
    assert propose(proposer).tokens[:2] == (202, 203)
    proposer.start(3, [3], 1, "tenant")
    proposer.extend(3, PROSE[8:11])
    assert propose(proposer, row=3) == NO_DRAFT, "by now it is forgotten"


def test_a_sequence_is_found_again_when_generations_rotate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suffix, "MAX_SHARED_TOKENS", 80)
    proposer = served(PROSE[:30])
    proposer.extend(0, PROSE[:10])
    assert propose(proposer).tokens[:3] == tuple(PROSE[10:13])
    proposer.extend(1, [1])
    assert propose(proposer) == NO_DRAFT
    proposer.extend(0, PROSE[10:11])
    assert len(propose(proposer)) > 15 and propose(proposer).tokens[:3] == tuple(PROSE[11:14])


def test_a_sequence_that_waited_while_its_texts_were_dropped_begins_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suffix, "MAX_SHARED_TOKENS", 80)
    proposer = served(PROSE[:30])
    proposer.extend(0, PROSE[:10])
    proposer.extend(1, range(200, 240))
    proposer.extend(1, range(300, 340))
    proposer.extend(0, [310])
    assert propose(proposer) == Draft.chain(range(311, 314)), "one token of a match"


def test_tenants_that_started_nothing_for_long_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suffix, "MAX_TENANTS", 2)
    proposer = served(PROSE)
    for tenant in ("second", "tenant", "third"):
        proposer.start(9, [1], 1, tenant)
    proposer.extend(0, PROSE[:3])
    assert len(propose(proposer))
    proposer.start(9, [1], 1, "second")
    proposer.start(0, [0], 1, "tenant")
    proposer.extend(0, PROSE[:3])
    assert propose(proposer) == NO_DRAFT


@given(st.lists(st.integers(0, 3), min_size=2, max_size=40), st.integers(1, 5))
def test_a_bounded_lookup_copies_what_followed_the_last_tokens_alone(text: list[int], longest: int) -> None:
    automaton = SuffixAutomaton()
    end = automaton.extend(EMPTY, text)
    match = Match(automaton, end, automaton.length[end]).continued()
    within = match.within(longest)
    assert within.length == min(match.length, longest)
    if within.length:
        ngram = text[-within.length :]
        followed = {
            text[start + len(ngram)]
            for start in range(len(text) - len(ngram))
            if text[start : start + len(ngram)] == ngram
        }
        assert {follower.token for follower in automaton.followers(within.state)} == followed


def test_lookups_are_as_long_as_requested() -> None:
    # After 1 2 3 came 7, but after 3 alone came 8 more often, and at last.
    text = [1, 2, 3, 7, 3, 8, 3, 8, 3, 8, 1, 2, 3]
    assert propose(started(text), most=1).tokens == (7,)
    assert propose(started(text, max_length=1), most=1).tokens == (8,)
    assert propose(started(text, max_length=3, min_length=3), most=1).tokens == (7,)
    assert propose(started(text, min_length=4)) == NO_DRAFT
