"""Reads the calls out of a model's answer while it is being written. Knows text only, no tokens and no HTTP."""

import json
import re
from collections.abc import Callable, Collection

from archerfish.api.deltas import Answer, CallArguments, CallStart, Content, Delta, InvalidCall, joined
from archerfish.api.tools.checks import is_function_name
from archerfish.api.tools.formats import ToolFormat
from archerfish.api.tools.scanner import SPACE, Scanner, Steps, Unexpected

_ARGUMENTS = ("arguments", "parameters")
_IGNORED = ("id", "type")
_NAME = re.compile(r"[\w-]*", re.ASCII)


class ToolCallReader:
    """Tells calls from words in an answer that comes in pieces. How it is cut makes no difference to what is read.

    Text that may become a call is held back until it is decided. A call begins (`CallStart`) when its name is complete
    and valid, and its arguments have begun as an object does. What fails before that is no call, and all of its text
    comes back as content.

    What follows is given out as it is written, so it cannot be taken back: if the arguments break off or are not valid
    JSON, then so are the pieces given out. Clients must check them, as OpenAI's API says. Arguments end where their
    brackets do; brackets that do not match, or a character that JSON has only in strings, break the call off, and what
    comes then is content.

    Space next to a call belongs to it, and what closes a call may be missing.

    Names are forgiven their case, underscores and hyphens where only one function can be meant. A call that a marker
    announced, and that names no function that may be called, is an `InvalidCall`: none of it is content.
    """

    def __init__(
        self,
        tool_format: ToolFormat,
        *,
        known: Collection[str] | None = None,
        new_id: Callable[[], str] | None = None,
    ) -> None:
        """`known` are the functions that may be called; without it, whatever could be the name of one is."""
        self._format = tool_format
        self._known = known
        self._by_plain_name = None if known is None else _by_plain_name(known)
        self._new_id = new_id or tool_format.new_id
        self._scanner = Scanner()
        self._steps = self._answer()
        self._deltas: list[Delta] = []
        self._num_calls = 0
        self._num_invalid = 0
        self._unknown: str | None = None
        """The function that the call being read names, where there is no such function."""
        self._is_behind_call = False

    @property
    def num_calls(self) -> int:
        """How many calls have begun."""
        return self._num_calls

    @property
    def _num_read(self) -> int:
        """Calls of any kind."""
        return self._num_calls + self._num_invalid

    def feed(self, text: str) -> list[Delta]:
        """Read on; what is certain now."""
        assert not self._scanner.is_complete, "text came after finish"
        self._scanner.text += text
        return self._advance()

    def finish(self) -> list[Delta]:
        """The answer is complete; what was held back."""
        self._scanner.is_complete = True
        return self._advance()

    def _advance(self) -> list[Delta]:
        next(self._steps, None)
        deltas, self._deltas = self._deltas, []
        return deltas

    def _answer(self) -> Steps[None]:
        scanner = self._scanner
        if self._format.may_be_bare:
            yield from scanner.skip_space()
            if (yield from scanner.peek()) in ("{", "["):
                yield from self._calls(are_announced=False)
            scanner.rewind()
        while (yield from self._content_before_marker()):
            scanner.at += len(self._format.start)
            num_read = scanner.at
            if not (yield from self._calls(are_announced=True)):
                self._give_content(num_read)

    def _content_before_marker(self) -> Steps[bool]:
        """Words up to a marker and the space before it; False if no marker comes any more."""
        scanner, start = self._scanner, self._format.start
        while True:
            # What was read but not given out is space: it may belong to a call.
            num_spaces = scanner.at
            found = scanner.text.find(start, num_spaces)
            end = found if found >= 0 else len(scanner.text) - _num_open(scanner.text, start)
            num_words = len(scanner.text[num_spaces:end].rstrip(SPACE))
            if num_words:
                self._give_content(num_spaces + num_words)
                end -= num_spaces + num_words
            scanner.at = end
            if found >= 0:
                return True
            if scanner.is_complete:
                break
            yield
        is_space_behind_call = self._is_behind_call and scanner.at == len(scanner.text)
        if not is_space_behind_call:
            self._give_content(len(scanner.text))
        return False

    def _calls(self, *, are_announced: bool) -> Steps[bool]:
        """Calls up to the first text that is none, which is left to be read again; whether there were any."""
        scanner, num_before = self._scanner, self._num_read
        try:
            yield from scanner.skip_space()
            first = yield from scanner.peek()
            if first == "[":
                yield from self._list(are_announced)
            elif first == "{":
                yield from self._row(are_announced)
            elif self._format.names_come_first:
                yield from self._name_and_arguments()
        except Unexpected:
            if self._unknown is not None:
                self._give_invalid_call(self._unknown, "")
        scanner.rewind()
        if self._num_read == num_before:
            return False
        yield from self._closers()
        return True

    def _list(self, are_announced: bool) -> Steps[None]:
        """[{...}, {...}]"""
        scanner = self._scanner
        yield from scanner.expect("[")
        while True:
            yield from scanner.skip_space()
            yield from self._object_with_name(are_announced)
            yield from scanner.skip_space()
            if not (yield from scanner.skip(",")):
                break
        yield from scanner.expect("]")
        scanner.take()

    def _row(self, are_announced: bool) -> Steps[None]:
        """{...}; {...}"""
        scanner = self._scanner
        while True:
            yield from self._object_with_name(are_announced)
            yield from scanner.skip_space()
            if (yield from scanner.skip(";")) or (yield from scanner.skip(",")):
                yield from scanner.skip_space()
            if (yield from scanner.peek()) != "{":
                return

    def _closers(self) -> Steps[None]:
        scanner = self._scanner
        while True:
            yield from scanner.skip_space()
            if not (yield from scanner.skip_one_of(self._format.closers)):
                break
            scanner.take()
        scanner.rewind()

    def _object_with_name(self, is_announced: bool) -> Steps[None]:
        """{"name": ..., "arguments": {...}}. Arguments that come before the name are held back until it is known."""
        scanner = self._scanner
        name: str | None = None
        arguments: str | None = None
        num_before = self._num_calls
        yield from scanner.expect("{")
        while True:
            key = yield from self._key()
            if self._num_calls > num_before or key in _IGNORED:
                yield from scanner.value()
            elif key == "name":
                name = self._check_name((yield from scanner.string()), is_announced)
            elif key not in _ARGUMENTS:
                raise Unexpected
            elif name is not None and self._unknown is None and (yield from scanner.peek()) == "{":
                yield from self._streamed_arguments(name)
            else:
                arguments = _object_text((yield from scanner.value()))
            yield from scanner.skip_space()
            if not (yield from scanner.skip(",")):
                break
        yield from scanner.expect("}")
        if self._unknown is not None:
            self._give_invalid_call(self._unknown, arguments or "{}")
        elif self._num_calls == num_before:
            # Where no marker announced it, an object with but a name is more likely an answer in JSON.
            if name is None or (arguments is None and not is_announced):
                raise Unexpected
            self._begin_call(name)
            self._deltas.append(CallArguments(self._num_calls - 1, arguments or "{}"))
        scanner.take()

    def _key(self) -> Steps[str]:
        """The key of an object's next entry, up to its value."""
        scanner = self._scanner
        yield from scanner.skip_space()
        key = yield from scanner.string()
        yield from scanner.skip_space()
        yield from scanner.expect(":")
        yield from scanner.skip_space()
        return key

    def _name_and_arguments(self) -> Steps[None]:
        """name[ARGS]{...}, in some models with an id before the arguments."""
        scanner = self._scanner
        name = yield from scanner.run(_NAME)
        if (yield from scanner.skip_one_of(("[CALL_ID]",))):
            yield from scanner.run(_NAME)
        yield from scanner.skip_one_of(("[ARGS]",))
        yield from scanner.skip_space()
        if (yield from scanner.peek()) != "{":
            raise Unexpected
        name = self._check_name(name, is_announced=True)
        if self._unknown is None:
            yield from self._streamed_arguments(name)
        else:
            self._give_invalid_call(self._unknown, _object_text((yield from scanner.value())))

    def _streamed_arguments(self, name: str) -> Steps[None]:
        """An object, given out while it is read."""
        scanner = self._scanner
        begin = scanner.at
        yield from scanner.expect("{")
        yield from scanner.skip_space()
        if (yield from scanner.peek()) not in ('"', "}"):
            raise Unexpected
        scanner.at = begin
        self._begin_call(name)
        yield from scanner.nested(self._give_arguments)

    def _check_name(self, written: str, is_announced: bool) -> str:
        """The function that is meant. Where a marker announced the call, it may be one that there is not."""
        if is_function_name(written):
            if self._known is None or self._by_plain_name is None or written in self._known:
                return written
            meant = self._by_plain_name.get(_plain_name(written))
            if meant is not None:
                return meant
        if not is_announced or self._known is None:
            raise Unexpected
        self._unknown = written
        return written

    def _begin_call(self, name: str) -> None:
        self._scanner.take()
        self._deltas.append(CallStart(self._num_calls, self._new_id(), name))
        self._num_calls += 1
        self._is_behind_call = True

    def _give_invalid_call(self, name: str, arguments: str) -> None:
        """Drop what was read of it from the text."""
        self._scanner.take()
        known = ", ".join(self._known or ())
        self._deltas.append(InvalidCall(name, arguments, f"there is no function {name!r}; there are {known}"))
        self._unknown = None
        self._num_invalid += 1
        self._is_behind_call = True

    def _give_arguments(self) -> None:
        text = self._scanner.take()
        if text:
            self._deltas.append(CallArguments(self._num_calls - 1, text))

    def _give_content(self, length: int) -> None:
        """Give out so much of the text that was held back."""
        self._scanner.at = length
        text = self._scanner.take()
        if not text:
            return
        self._is_behind_call = False
        last = self._deltas[-1] if self._deltas else None
        if isinstance(last, Content):
            self._deltas[-1] = Content(last.text + text)
        else:
            self._deltas.append(Content(text))


def read_answer(
    text: str,
    tool_format: ToolFormat,
    *,
    known: Collection[str] | None = None,
    new_id: Callable[[], str] | None = None,
) -> Answer:
    """A whole answer at once. The same calls and words as when it is streamed."""
    reader = ToolCallReader(tool_format, known=known, new_id=new_id)
    return joined([*reader.feed(text), *reader.finish()])


def _plain_name(name: str) -> str:
    return name.replace("_", "").replace("-", "").casefold()


def _by_plain_name(names: Collection[str]) -> dict[str, str]:
    """Names by their plain form, where no other has the same."""
    plain = [_plain_name(name) for name in names]
    return {short: name for short, name in zip(plain, names, strict=True) if plain.count(short) == 1}


def _num_open(text: str, marker: str) -> int:
    """How many characters at the end of the text may be the beginning of the marker."""
    lengths = range(min(len(marker) - 1, len(text)), 0, -1)
    return next((length for length in lengths if text.endswith(marker[:length])), 0)


def _object_text(value: str) -> str:
    """The text of an object that is written as such, or as a string (some models quote it once more), or left out."""
    try:
        meaning = json.loads(value, strict=False)
        if meaning is None:
            return "{}"
        written = value
        if isinstance(meaning, str):
            written, meaning = meaning, json.loads(meaning, strict=False)
        written.encode()  # Half of a surrogate pair, which only an escape can bring here, could not be sent.
    except (ValueError, RecursionError):
        raise Unexpected from None
    if not isinstance(meaning, dict):
        raise Unexpected
    return written
