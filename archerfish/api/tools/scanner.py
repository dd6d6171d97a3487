"""Reads JSON and other texts piece by piece while they arrive."""

import json
import re
from collections.abc import Callable, Generator, Sequence
from typing import TypeAlias, TypeVar

Result = TypeVar("Result")
Steps: TypeAlias = Generator[None, None, Result]
"""A reader that pauses wherever it needs text that has not come yet."""

SPACE = " \t\r\n"

# How far a text goes on without saying anything about where a value ends.
_RUNS = {
    "plain": re.compile(r"[\w\s:,.+-]*", re.ASCII),
    "string": re.compile(r'[^"\\]*'),
    "escape": re.compile(r""),
}
_CLOSING = {"{": "}", "[": "]"}
# What is no JSON may be code.
_CLOSING_ANYWHERE = {**_CLOSING, "(": ")"}
_SCALAR = re.compile(r"[\w.+-]*", re.ASCII)


class Unexpected(Exception):
    """The text is not what was to be read. It stays where the reader was. The message, if any, says why."""


class Scanner:
    """A text that grows at its end, and how far it was read.

    Readers only ask for the next character or for a text that must come next, and wait until that is known. So what
    they find does not depend on how the text was cut when it came.
    """

    def __init__(self) -> None:
        self.text = ""
        """What was not taken yet."""
        self.at = 0
        """How much of it was read."""
        self.is_complete = False
        """Whether no more text comes."""

    def take(self) -> str:
        """Cut off what was read: it cannot be read again."""
        taken, self.text, self.at = self.text[: self.at], self.text[self.at :], 0
        return taken

    def take_before(self, position: int) -> None:
        """Cut off what comes before a position, and read on from there."""
        self.at = position
        self.take()

    def rewind(self) -> None:
        """Read again what was not taken."""
        self.at = 0

    def peek(self) -> Steps[str]:
        """The next character, not read; empty at the end."""
        while self.at == len(self.text):
            if self.is_complete:
                return ""
            yield
        return self.text[self.at]

    def skip(self, character: str) -> Steps[bool]:
        """Read this character if it comes next."""
        if (yield from self.peek()) != character:
            return False
        self.at += 1
        return True

    def expect(self, character: str) -> Steps[None]:
        if not (yield from self.skip(character)):
            raise Unexpected

    def skip_space(self) -> Steps[None]:
        while (yield from self.peek()) in tuple(SPACE):
            self.at += 1

    def skip_one_of(self, texts: Sequence[str]) -> Steps[bool]:
        """Read one of these texts if it comes next. None may be the beginning of another."""
        longest = max(map(len, texts), default=0)
        while True:
            rest = self.text[self.at : self.at + longest]
            for text in texts:
                if rest.startswith(text):
                    self.at += len(text)
                    return True
            if self.is_complete or not any(text.startswith(rest) for text in texts):
                return False
            yield

    def is_next(self, texts: Sequence[str]) -> Steps[bool]:
        """Whether one of these texts comes next. It is not read."""
        begin = self.at
        is_next = yield from self.skip_one_of(texts)
        self.at = begin
        return is_next

    def run(self, pattern: re.Pattern[str]) -> Steps[str]:
        """Read as many characters as the pattern, which matches any number of them, takes."""
        begin = self.at
        while True:
            self._pass(pattern)
            if self.at < len(self.text) or self.is_complete:
                return self.text[begin : self.at]
            yield

    def string(self) -> Steps[str]:
        """Read a JSON string and return its value."""
        if (yield from self.peek()) != '"':
            raise Unexpected
        written = yield from self.value()
        try:
            # Not strict: models write line breaks as they are.
            return str(json.loads(written, strict=False))
        except ValueError:
            raise Unexpected from None

    def value(self, stops: Sequence[str] | None = None) -> Steps[str]:
        """The text of a JSON value. Only where it ends is certain, not that it is valid. `stops` as for `nested`."""
        begin = self.at
        if (yield from self.peek()) in ('"', "{", "["):
            yield from self.nested(stops=stops)
        elif not (yield from self.run(_SCALAR)):
            raise Unexpected
        return self.text[begin : self.at]

    def nested(self, give: Callable[[], None] = lambda: None, stops: Sequence[str] | None = None) -> Steps[None]:
        """A string, or an object or list up to its last bracket. `give` may take what was read, now and then.

        With `stops`, what turns out to be no JSON is read on as `broken` does; one of them where JSON has no such text
        shows that it is none.
        """
        closing: list[str] = []
        state = "plain"
        while True:
            self._pass(_RUNS[state])
            if self.at == len(self.text):
                give()
                if not (yield from self.peek()):
                    raise Unexpected
                continue
            character = self.text[self.at]
            if state == "escape":
                state = "string"
            elif state == "string":
                state = "plain" if character == '"' else "escape"
            elif character == '"':
                state = "string"
            elif character in _CLOSING and not (stops and (yield from self.is_next(stops))):
                closing.append(_CLOSING[character])
            elif closing and character == closing[-1]:
                closing.pop()
            elif stops is not None:
                yield from self.broken(stops, closing, give)
                return
            else:
                give()
                raise Unexpected
            self.at += 1
            if state == "plain" and not closing:
                give()
                return

    def broken(
        self, stops: Sequence[str], closing: Sequence[str] = (), give: Callable[[], None] = lambda: None
    ) -> Steps[bool]:
        """Skip invalid JSON up to where its brackets close; return False if the text ends before that.

        A stop ends it, also within a string, and so does a bracket that closes nothing. Neither is read. `closing` are
        the brackets that are open.
        """
        open_brackets, state = list(closing), "plain"
        first_of_stops = {stop[0] for stop in stops}
        while True:
            if self.at == len(self.text):
                give()
            character = yield from self.peek()
            is_stop = character in first_of_stops and (yield from self.is_next(stops))
            is_closing = state == "plain" and character in _CLOSING_ANYWHERE.values()
            if not character or is_stop or (is_closing and not open_brackets):
                give()
                return bool(character)
            self.at += 1
            if state == "escape":
                state = "string"
            elif character == '"':
                state = "plain" if state == "string" else "string"
            elif state == "string":
                state = "escape" if character == "\\" else "string"
            elif character in _CLOSING_ANYWHERE:
                open_brackets.append(_CLOSING_ANYWHERE[character])
            elif is_closing and character in open_brackets:
                while open_brackets.pop() != character:
                    pass
                if not open_brackets:
                    give()
                    return True

    def _pass(self, pattern: re.Pattern[str]) -> None:
        match = pattern.match(self.text, self.at)
        assert match is not None, "it takes any number of characters, also none"
        self.at = match.end()
