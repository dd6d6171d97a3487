"""Special tokens are no part of what is shown, however the text is cut."""

from hypothesis import given
from hypothesis import strategies as st

from archerfish.api.answers import (
    AnswerReader,
    CallStart,
    Content,
    Delta,
    ReaderWithoutSpecialTexts,
    SpecialTexts,
    joined,
)

SPECIAL = SpecialTexts(["<|end|>", "<|en", "[X]", "", "<|end|>more"])


class Script(AnswerReader):
    """Reads calls out of exclamation marks."""

    def feed(self, text: str) -> list[Delta]:
        words = text.split("!")
        calls = [CallStart(index, "id", "f") for index in range(len(words) - 1)]
        return [one for pair in zip(map(Content, words), [*calls, None], strict=True) for one in pair if one]


def shown(pieces: list[str]) -> str:
    reader = ReaderWithoutSpecialTexts(AnswerReader(), SPECIAL)
    return joined([*(delta for piece in pieces for delta in reader.feed(piece)), *reader.finish()]).content


@given(st.lists(st.sampled_from(["<|end|>", "<|en", "<|", "[X]", "[", "a", "d|>", "more", " "])), st.data())
def test_how_the_text_is_cut_makes_no_difference(parts: list[str], data: st.DataObject) -> None:
    text = "".join(parts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)))))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert shown(pieces) == shown(list(text))


def test_what_may_become_a_special_token_is_held_back() -> None:
    reader = ReaderWithoutSpecialTexts(AnswerReader(), SPECIAL)
    assert reader.feed("a [") == [Content("a ")]
    assert reader.feed("X] [") == [Content(" ")]
    assert reader.feed("Y") == [Content("[Y")]
    assert reader.feed("<") == [] and reader.finish() == [Content("<")]


def test_what_is_held_back_comes_before_a_call() -> None:
    reader = ReaderWithoutSpecialTexts(Script(), SPECIAL)
    assert reader.feed("a[!b") == [Content("a"), Content("["), CallStart(0, "id", "f"), Content("b")]
