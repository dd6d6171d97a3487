"""Reads calls out of a model's answer while it is generated."""

import json
import re
from collections.abc import Callable, Collection

from archerfish.api.answers import CallArguments, CallStart, Content, Delta, InvalidCall, ParsedAnswer, joined
from archerfish.api.tools.formats import ToolFormat
from archerfish.api.tools.functions import FunctionNames
from archerfish.api.tools.malformed import NO_OBJECT, CallBounds, CallSoFar
from archerfish.api.tools.scanner import SPACE, Scanner, Steps, Unexpected

_ARGUMENTS = ("arguments", "parameters")
_IGNORED = ("id", "type")
_NAME = re.compile(r"[\w-]*", re.ASCII)


class ToolCallReader:
    """Separates calls from words in an answer that comes in pieces. How it is cut makes no difference to what is read.

    Text that may become a call is held back until it is decided. A call begins (`CallStart`) when its name is complete
    and valid, and its arguments have begun as an object does. What fails before that is an `InvalidCall` if a marker
    announced it: none of it is content. Without a marker it may be an answer in JSON, and all of it is content.

    What follows is given out as it is written, so it cannot be taken back: if the arguments break off or are not valid
    JSON, then so are the pieces given out. Clients must check them, as OpenAI's API says. Arguments end where their
    brackets do. Where these do not match, or a character comes that JSON has only in strings, an announced call goes on
    as far as its brackets can be followed, at most to the next marker; one without a marker is broken off.

    A marker announces a call where a bracket, a function's name, or the end of the answer follows it, or the marker
    that ends a call or its name comes later. Otherwise it is content: answers may be about markers.

    Space next to a call belongs to it, and what closes a call may be missing or come too often. Names are forgiven
    their case, underscores and hyphens where only one function can be meant.
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
        self._bounds = CallBounds(tool_format)
        self._names = FunctionNames(known)
        self._new_id = new_id or tool_format.new_id
        self._scanner = Scanner()
        self._steps = self._answer()
        self._deltas: list[Delta] = []
        self._num_calls = 0
        self._num_invalid_calls = 0
        self._is_behind_call = False

    @property
    def num_calls(self) -> int:
        """Number of calls that have begun."""
        return self._num_calls

    @property
    def num_invalid_calls(self) -> int:
        return self._num_invalid_calls

    @property
    def _num_read(self) -> int:
        """Calls of any kind."""
        return self._num_calls + self._num_invalid_calls

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
            num_read = yield from self._markers()
            if not (yield from self._calls(are_announced=True)):
                self._give_content(num_read)

    def _markers(self) -> Steps[int]:
        """Read the marker that comes next, and others that do nothing but repeat it; where the last of them ends."""
        scanner, end = self._scanner, 0
        while (yield from scanner.skip_one_of((self._format.start,))):
            end = scanner.at
            yield from scanner.skip_space()
        scanner.at = end
        return end

    def _content_before_marker(self) -> Steps[bool]:
        """Words up to a marker and the space before it; False if no marker comes any more."""
        scanner, start = self._scanner, self._format.start
        while True:
            # What was read but not given out is space: it may belong to a call.
            num_spaces = scanner.at
            start_index = scanner.text.find(start, num_spaces)
            end = start_index if start_index >= 0 else len(scanner.text) - _num_open(scanner.text, start)
            num_words = len(scanner.text[num_spaces:end].rstrip(SPACE))
            if num_words:
                self._give_content(num_spaces + num_words)
                end -= num_spaces + num_words
            scanner.at = end
            if start_index >= 0:
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
            is_named = yield from scanner.is_next(self._format.inner_markers)
            first = yield from scanner.peek()
            if first == "[" and not is_named:
                yield from self._list(are_announced)
            elif first == "{":
                yield from self._row(are_announced)
            elif are_announced:
                yield from self._without_object()
        except Unexpected:
            pass
        scanner.rewind()
        if self._num_read == num_before:
            return False
        yield from self._closers(("}", "]") if are_announced else ())
        return True

    def _list(self, are_announced: bool) -> Steps[None]:
        """[{...}, {...}]"""
        scanner = self._scanner
        yield from scanner.expect("[")
        while True:
            yield from scanner.skip_space()
            yield from self._object(are_announced)
            yield from scanner.skip_space()
            if not (yield from scanner.skip(",")):
                break
            yield from scanner.skip_space()
            if are_announced and (yield from scanner.peek()) in ("]", ""):
                scanner.take()
                break
        yield from scanner.expect("]")
        scanner.take()

    def _row(self, are_announced: bool) -> Steps[None]:
        """{...}; {...}"""
        scanner = self._scanner
        while True:
            yield from self._object(are_announced)
            yield from scanner.skip_space()
            if (yield from scanner.skip(";")) or (yield from scanner.skip(",")):
                yield from scanner.skip_space()
            if (yield from scanner.peek()) != "{":
                return

    def _closers(self, stray: tuple[str, ...]) -> Steps[None]:
        """Return the texts that close calls; `stray` are brackets that small models write too many of."""
        scanner = self._scanner
        while True:
            yield from scanner.skip_space()
            if not (yield from scanner.skip_one_of((*self._format.closers, *stray))):
                break
            scanner.take()
        scanner.rewind()

    def _object(self, is_announced: bool) -> Steps[None]:
        """A call that is an object. Where a marker announced it, what cannot be read is an invalid call."""
        scanner, call = self._scanner, CallSoFar()
        if is_announced:
            scanner.take()
        try:
            yield from self._object_with_name(call, is_announced)
        except Unexpected as unexpected:
            if not is_announced:
                raise
            scanner.rewind()
            if not call.has_begun:
                yield from self._invalid_call(call, str(unexpected))
            else:
                yield from self._rest_of_call(call)

    def _object_with_name(self, call: CallSoFar, is_announced: bool) -> Steps[None]:
        """{"name": ..., "arguments": {...}}. Arguments that come before the name are held back until it is known."""
        scanner = self._scanner
        yield from scanner.expect("{")
        while True:
            key = yield from self._key()
            if call.has_begun or key in _IGNORED:
                yield from scanner.value(self._stops(is_announced))
            elif key == "name":
                self._set_name(call, (yield from scanner.string()), is_announced)
            elif key not in _ARGUMENTS:
                raise Unexpected(f"a call has no field {key!r}; it has name and arguments")
            else:
                yield from self._arguments(call, is_announced)
            yield from scanner.skip_space()
            if not (yield from scanner.skip(",")):
                break
        yield from scanner.expect("}")
        if not call.has_begun:
            if not call.name:
                raise Unexpected("the call has no name")
            # Where no marker announced it, an object with but a name is more likely an answer in JSON.
            if call.arguments is None and not is_announced:
                raise Unexpected
        self._end_call(call)

    def _key(self) -> Steps[str]:
        """The key of an object's next entry, up to its value."""
        scanner = self._scanner
        yield from scanner.skip_space()
        key = yield from scanner.string()
        yield from scanner.skip_space()
        yield from scanner.expect(":")
        yield from scanner.skip_space()
        return key

    def _arguments(self, call: CallSoFar, is_announced: bool) -> Steps[None]:
        """An object, given out while it is read where the function is known."""
        call.reads_arguments = True
        if call.name and not call.is_unknown and (yield from self._scanner.peek()) == "{":
            yield from self._streamed_arguments(call, is_announced)
        else:
            call.arguments = _object_text((yield from self._scanner.value(self._stops(is_announced))))
        call.reads_arguments = False

    def _streamed_arguments(self, call: CallSoFar, is_announced: bool) -> Steps[None]:
        scanner = self._scanner
        begin = scanner.at
        yield from scanner.expect("{")
        yield from scanner.skip_space()
        if (yield from scanner.peek()) not in ('"', "}"):
            raise Unexpected
        scanner.at = begin
        self._begin_call(call)
        yield from scanner.nested(self._give_arguments, self._stops(is_announced))

    def _stops(self, is_announced: bool) -> tuple[str, ...] | None:
        """Return the texts at which a call ends at the latest. Without a marker, text that is no call stays content."""
        return self._bounds.stops if is_announced else None

    def _without_object(self) -> Steps[None]:
        """Read what follows a marker without brackets: a call with its name first, an invalid call, or words."""
        scanner, call = self._scanner, CallSoFar()
        begin = scanner.at
        if not (yield from self._is_call(call)):
            raise Unexpected
        scanner.take_before(begin)
        try:
            if not self._format.names_come_first or (yield from scanner.is_next(self._format.closers)):
                raise Unexpected
            yield from self._name_and_arguments(call)
        except Unexpected as unexpected:
            scanner.rewind()
            if not call.has_begun:
                yield from self._invalid_call(call, str(unexpected))

    def _is_call(self, call: CallSoFar) -> Steps[bool]:
        """Whether a marker announced a call and no words, though no bracket follows it. Reads ahead."""
        scanner, names_come_first = self._scanner, self._format.names_come_first
        if (yield from scanner.is_next(self._format.closers)) or not (yield from scanner.peek()):
            return True
        written = yield from scanner.run(_NAME)
        is_whole = bool((yield from scanner.peek()))
        meant = None if self._names.known is None else self._names.find(written)
        if meant is not None:
            call.name = meant
            return True
        if written and not is_whole and (names_come_first or self._names.has_one_that_begins(written)):
            return True
        yield from scanner.skip_space()
        if written and names_come_first and (yield from scanner.peek()) == "{":
            return True
        return (yield from self._bounds.has_sign(scanner))

    def _name_and_arguments(self, call: CallSoFar) -> Steps[None]:
        """name[ARGS]{...}, in some models with an id before the arguments."""
        scanner = self._scanner
        written = yield from scanner.run(_NAME)
        is_whole = bool((yield from scanner.peek()))
        if (yield from scanner.skip_one_of(("[CALL_ID]",))):
            yield from scanner.run(_NAME)
        yield from scanner.skip_one_of(("[ARGS]",))
        yield from scanner.skip_space()
        if is_whole:
            self._set_name(call, written, is_announced=True)
        if not (yield from scanner.peek()):
            raise Unexpected
        yield from self._arguments(call, is_announced=True)
        self._end_call(call)

    def _invalid_call(self, call: CallSoFar, reason: str) -> Steps[None]:
        """Read a call that a marker announced and that cannot be parsed."""
        scanner = self._scanner
        has_ended = yield from self._bounds.read(scanner)
        self._give_invalid_call(call, reason or call.error(scanner.text[: scanner.at].strip(SPACE), has_ended))

    def _rest_of_call(self, call: CallSoFar) -> Steps[None]:
        """Read what follows the arguments within a call's brackets and cannot be parsed."""
        scanner = self._scanner
        yield from scanner.skip_space()
        if (yield from scanner.peek()) != ",":
            scanner.rewind()
            return
        yield from scanner.broken(self._bounds.stops, ["}"])
        if scanner.text[: scanner.at].strip(SPACE + ",}"):
            self._give_invalid_call(call, "what follows the arguments is not valid JSON")
        scanner.take()

    def _set_name(self, call: CallSoFar, written: str, is_announced: bool) -> None:
        """Note the function that is meant. Where a marker announced the call, it may be one that there is not."""
        meant = self._names.find(written)
        if meant is None and (not is_announced or self._names.known is None):
            raise Unexpected(self._names.error(written))
        call.name, call.is_unknown = meant or written, meant is None

    def _begin_call(self, call: CallSoFar) -> None:
        self._scanner.take()
        self._deltas.append(CallStart(self._num_calls, self._new_id(), call.name))
        self._num_calls += 1
        self._is_behind_call = call.has_begun = True

    def _end_call(self, call: CallSoFar) -> None:
        """Give it out, where that was not done while its arguments were read."""
        if call.is_unknown:
            call.arguments = call.arguments or "{}"
            self._give_invalid_call(call, "")
        elif not call.has_begun:
            self._begin_call(call)
            self._deltas.append(CallArguments(self._num_calls - 1, call.arguments or "{}"))
        self._scanner.take()

    def _give_invalid_call(self, call: CallSoFar, reason: str) -> None:
        """Emit the invalid call that was read."""
        if call.is_unknown:
            reason = self._names.error(call.name)
        text = self._scanner.take().strip(SPACE)
        self._deltas.append(InvalidCall(call.name, call.arguments or "", reason, text))
        self._num_invalid_calls += 1
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
) -> ParsedAnswer:
    """A whole answer at once. The same calls and words as when it is streamed."""
    reader = ToolCallReader(tool_format, known=known, new_id=new_id)
    return joined([*reader.feed(text), *reader.finish()])


def _num_open(text: str, marker: str) -> int:
    """Return how many characters at the end of the text may begin the marker."""
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
        raise Unexpected(NO_OBJECT) from None
    if not isinstance(meaning, dict):
        raise Unexpected(NO_OBJECT)
    return written
