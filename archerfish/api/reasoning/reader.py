"""Separates reasoning from the answer that follows it, while both are generated."""

from archerfish.api.answer_deltas import Delta, Reasoning
from archerfish.api.answer_reader import AnswerReader
from archerfish.api.reasoning.formats import ReasoningFormat

_SPACE = " \t\r\n"


class ReasoningReader(AnswerReader):
    """Reasoning up to its end tag, and what another reader finds behind it. How the text is cut makes no difference.

    Space next to a tag belongs to it. An end tag that is missing means that all of it was reasoning.
    """

    def __init__(self, reasoning_format: ReasoningFormat, inner: AnswerReader, *, is_open: bool) -> None:
        """`is_open`: the answer begins within reasoning, with a start tag or without. Otherwise only with one."""
        self._format = reasoning_format
        self._inner = inner
        self._text = ""
        """What is held back."""
        self._is_open = is_open
        self._is_decided = False
        self._is_inside = False
        self._has_begun = False
        """Whether anything was given out of the part being read: space before that is dropped."""

    @property
    def has_calls(self) -> bool:
        return self._inner.has_calls

    @property
    def has_invalid_calls(self) -> bool:
        return self._inner.has_invalid_calls

    def feed(self, text: str) -> list[Delta]:
        self._text += text
        return self._advance(is_complete=False)

    def finish(self) -> list[Delta]:
        return self._advance(is_complete=True) + self._inner.finish()

    def _advance(self, *, is_complete: bool) -> list[Delta]:
        if not self._is_decided and not self._decide(is_complete):
            return []
        deltas = self._reasoning(is_complete) if self._is_inside else []
        return deltas if self._is_inside else deltas + self._answer()

    def _decide(self, is_complete: bool) -> bool:
        """Whether it is known if the answer begins with the start tag."""
        words = self._text.lstrip(_SPACE)
        if words.startswith(self._format.start):
            self._text = words[len(self._format.start) :]
            self._is_inside = True
        elif not is_complete and self._format.start.startswith(words):
            return False
        elif self._is_open:
            self._is_inside = True
        else:
            self._has_begun = True  # Without reasoning, space at the beginning is part of the answer.
        self._is_decided = True
        return True

    def _reasoning(self, is_complete: bool) -> list[Delta]:
        end = self._format.end
        found = self._text.find(end)
        if found < 0:
            held = 0 if is_complete else _num_held(self._text, end)
            text, self._text = self._text[: len(self._text) - held], self._text[len(self._text) - held :]
        else:
            text, self._text = self._text[:found].rstrip(_SPACE), self._text[found + len(end) :]
        if not self._has_begun:
            text = text.lstrip(_SPACE)
        if is_complete and found < 0:
            text = text.rstrip(_SPACE)
        self._has_begun = self._has_begun or bool(text)
        if found >= 0:
            self._is_inside = self._has_begun = False
        return [Reasoning(text)] if text else []

    def _answer(self) -> list[Delta]:
        text, self._text = self._text, ""
        if not self._has_begun:
            text = text.lstrip(_SPACE)
        self._has_begun = self._has_begun or bool(text)
        return self._inner.feed(text) if text else []


def _num_held(text: str, end: str) -> int:
    """Return how many characters at the end of the text may be space before the end tag, or begin the tag."""
    lengths = range(min(len(end) - 1, len(text)), 0, -1)
    of_tag = next((length for length in lengths if text.endswith(end[:length])), 0)
    words = text[: len(text) - of_tag].rstrip(_SPACE)
    return len(text) - len(words)
