"""The search for stop strings agrees with looking at the whole text again after every character."""

from hypothesis import given
from hypothesis import strategies as st

from archerfish.tokenizer.stop_strings import StopMatch, StopStrings
from tests.lanes import examples

texts = st.text(alphabet="ab", max_size=12)
stops = st.lists(st.text(alphabet="ab", min_size=1, max_size=4), max_size=3)


def expected_match(text: str, stops: list[str], first_end: int = 1) -> StopMatch | None:
    """The plain way: the first end at which any stop string stands, and the longest that does."""
    for end in range(first_end, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            return StopMatch(max(found, key=len), end)
    return None


def expected_open(text: str, stops: list[str]) -> int:
    beginnings = {stop[:length] for stop in stops for length in range(1, len(stop))}
    return max((len(start) for start in beginnings if text.endswith(start)), default=0)


@examples(500)
@given(pieces=st.lists(texts, max_size=4), stops=stops)
def test_finds_what_is_complete_first(pieces: list[str], stops: list[str]) -> None:
    search, read = StopStrings(stops), ""
    for piece in pieces:
        expected = expected_match(read + piece, stops)
        match = search.find(piece)
        if expected is None:
            assert match is None
        else:
            assert match == StopMatch(expected.stop, expected.end - len(read))
            return
        read += piece
        assert search.num_open == expected_open(read, stops)


@examples(500)
@given(before=texts, after=texts, stops=stops)
def test_reads_on_where_it_may_not_stop(before: str, after: str, stops: list[str]) -> None:
    search = StopStrings(stops)
    assert search.find(before, may_stop=False) is None
    assert search.num_open == expected_open(before, stops)
    expected = expected_match(before + after, stops, first_end=len(before) + 1)
    match = search.find(after)
    assert match == (None if expected is None else StopMatch(expected.stop, expected.end - len(before)))


def test_characters_beyond_the_first_plane() -> None:
    search = StopStrings(["🇳🇴", "好"])
    assert search.find("🇯🇳🇳") is None
    assert search.num_open == 1
    assert search.find("🇴好") == StopMatch("🇳🇴", 1)


def test_long_stop_string_does_not_slow_a_character_down() -> None:
    class Counting(str):
        num_comparisons = 0

        def __getitem__(self, key: object) -> str:
            Counting.num_comparisons += 1
            return super().__getitem__(key)  # type: ignore[index]

    search = StopStrings([Counting("a" * 5000 + "b")])
    Counting.num_comparisons = 0
    for _ in range(3000):
        search.find("aaaa")
    assert Counting.num_comparisons < 12_000 * 4
    assert search.num_open == 5000
