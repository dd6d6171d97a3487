"""The index of strings against a search through all of them."""

from collections import defaultdict

from hypothesis import given
from hypothesis import strategies as st

from archerfish.speculation.proposers.suffix_automaton import COUNTED_SUFFIXES, EMPTY, SuffixAutomaton
from tests.lanes import examples

Text = tuple[int, ...]

TEXT = st.lists(st.integers(0, 2), max_size=COUNTED_SUFFIXES).map(tuple)
"""Few tokens, so that strings occur again; short enough for every suffix to be counted."""
WRITTEN = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), max_size=COUNTED_SUFFIXES)
"""Which of three texts each token is written to."""


class Searched:
    """The same questions, answered by looking at every string of every text."""

    def __init__(self, written: list[tuple[int, int]]) -> None:
        self.texts: list[Text] = [(), (), ()]
        self.times: dict[Text, list[int]] = defaultdict(list)
        self.after: dict[Text, set[int]] = defaultdict(set)
        for time, (which, token) in enumerate(written, start=1):
            before = self.texts[which]
            text = self.texts[which] = (*before, token)
            for start in range(len(text) + 1):
                self.times[text[start:]].append(time)
                if start < len(text):
                    self.after[before[start:]].add(token)

    def longest_continued(self, text: Text) -> Text:
        return next((text[start:] for start in range(len(text)) if self.after[text[start:]]), ())


def find(automaton: SuffixAutomaton, string: Text) -> int | None:
    state = EMPTY
    for token in string:
        following = automaton.follow(state, token)
        if following is None:
            return None
        state = following
    return state


def write(written: list[tuple[int, int]]) -> tuple[SuffixAutomaton, list[int]]:
    automaton, ends = SuffixAutomaton(), [EMPTY] * 3
    for which, token in written:
        ends[which] = automaton.extend(ends[which], [token])
    return automaton, ends


@examples(200)
@given(WRITTEN)
def test_every_string_and_no_other_is_found_as_often_and_as_late_as_it_occurred(written: list[tuple[int, int]]) -> None:
    automaton, _ = write(written)
    searched = Searched(written)
    for string, times in searched.times.items():
        state = find(automaton, string)
        assert state is not None
        assert {token for token, _ in automaton.followers(state)} == searched.after[string]
        for token in range(3):
            assert (automaton.follow(state, token) is not None) == (token in searched.after[string])
        if string:
            assert (automaton.occurred[state], automaton.recent[state]) == (len(times), times[-1])


@examples(200)
@given(WRITTEN)
def test_a_text_leads_to_its_longest_suffix_that_something_followed(written: list[tuple[int, int]]) -> None:
    automaton, ends = write(written)
    searched = Searched(written)
    for text, end in zip(searched.texts, ends, strict=True):
        assert automaton.length[end] == len(text) and find(automaton, text) == end
        longest = searched.longest_continued(text)
        state = automaton.continued(end)
        assert automaton.length[state] == len(longest) and find(automaton, longest) == state


@given(TEXT, st.integers(0, COUNTED_SUFFIXES))
def test_pieces_of_a_text_come_to_what_the_whole_does(text: Text, cut: int) -> None:
    whole, pieces = SuffixAutomaton(), SuffixAutomaton()
    end = pieces.extend(pieces.extend(EMPTY, text[:cut]), text[cut:])
    assert whole.extend(EMPTY, text) == end and whole.num_tokens == pieces.num_tokens == len(text)
    assert (whole.length, whole.link, whole.occurred) == (pieces.length, pieces.link, pieces.occurred)


def test_links_lead_to_ever_shorter_suffixes_and_states_are_few() -> None:
    automaton = SuffixAutomaton()
    automaton.extend(EMPTY, [value * value % 7 for value in range(200)] + [3, 1, 4, 1, 5] * 40)
    assert len(automaton) <= 2 * automaton.num_tokens
    assert all(automaton.length[automaton.link[state]] < automaton.length[state] for state in range(1, len(automaton)))


def test_where_suffixes_are_too_many_to_count_the_longest_are_counted() -> None:
    automaton = SuffixAutomaton()
    num_tokens = 2 * COUNTED_SUFFIXES
    end = automaton.extend(EMPTY, [7] * num_tokens)
    times = {automaton.length[state]: automaton.occurred[state] for state in range(1, len(automaton))}
    longest = range(num_tokens - COUNTED_SUFFIXES + 1, num_tokens + 1)
    assert all(times[length] == num_tokens + 1 - length for length in longest)
    assert times[1] == COUNTED_SUFFIXES < num_tokens
    assert automaton.length[automaton.continued(end)] == num_tokens - 1
