"""Reads the lines of a batch's input: the format of each line, and its body as bytes of the file. Knows no store.

Lines are untrusted. Bodies are not parsed here: that is done where they are answered, within the limits of every other
body.
"""

import codecs
import json
import re
import threading
import time
from collections.abc import Iterator
from itertools import islice
from typing import BinaryIO, NamedTuple

import msgspec

from archerfish.jobs.records import BatchError

_FIELDS = ("custom_id", "method", "url", "body")

_LONGEST_CUSTOM_ID = 512
_MAX_TEXT_BYTES = 12 * _LONGEST_CUSTOM_ID + 2
"""Most bytes of a custom_id in JSON, where every character may be a pair of escapes."""
_PIECE = 1024 * 1024
_SHORT_LINE = 64 * 1024
"""Bytes of a line that is parsed within a millisecond, whatever its content."""
_MAX_WAITING_BYTES = 4096
"""Bytes of a line whose body stays in memory while it waits."""
_NOTICEABLE_SECONDS = 0.005
"""Seconds for which other threads may have to wait for the interpreter anyway."""
_LONGEST_REST = 0.2

_UNKNOWN_FIELD = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)
_HEX = rb"[0-9a-fA-F]"
_SURROGATE_PAIR = rb"\\u[dD][89abAB]" + 2 * _HEX + rb"\\u[dD][c-fC-F]" + 2 * _HEX
_LONE_SURROGATE = re.compile(
    # Text, other escapes and whole pairs come before it. Invalid escapes are skipped.
    rb"(?:[^\\]++|\\[^u]|\\u(?![dD][89a-fA-F])|" + _SURROGATE_PAIR + rb")*+"
    rb"(?:\\u([dD][89a-fA-F]" + 2 * _HEX + rb")|\\u?|\Z)"
)
_MAX_LONE_SURROGATES = 10_000
"""Lone surrogates that are looked for in one line. A line with more of them is refused as invalid JSON."""


class InputLine(NamedTuple):
    """One request of a batch."""

    number: int
    """Line number; the first is 1."""
    custom_id: str
    url: str
    body: bytes
    """JSON of any value, however deep or long; only objects can be answered."""


class LineSpan(NamedTuple):
    """The position of a request in the file. A long body stays there until it is needed."""

    number: int
    custom_id: str
    offset: int
    num_bytes: int
    short_body: bytes | None
    """The body of a line so short that many bodies may wait in memory; None for a longer one."""


class RawLine(NamedTuple):
    """A line that is not blank, without its line end."""

    number: int
    offset: int
    text: bytes
    """The line; of a line that is too long, a piece that exceeds the limit."""


class InputDamaged(Exception):
    """A line that was valid when it was checked cannot be read."""

    def __init__(self, error: BatchError) -> None:
        super().__init__(f"line {error.line}: {error.message}")
        self.error = error


class InputReader:
    """Reads one input from any thread: its lines in order, and bodies in between."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._lock = threading.Lock()
        """Held from seeking in the stream to reading there."""

    def raw_lines(self, max_line_bytes: int | None = None) -> Iterator[RawLine]:
        """Yield the lines that are not blank. Blank lines count in line numbers."""
        limit = -1 if max_line_bytes is None else max_line_bytes + 2
        position, number = 0, 0
        while text := self._read_line(position, limit):
            number += 1
            offset, position = position, position + len(text)
            if max_line_bytes is not None and len(text) > max_line_bytes and not text.endswith(b"\n"):
                position = self._skip_line(position)
            if number == 1 and text.startswith(codecs.BOM_UTF8):
                text, offset = text.removeprefix(codecs.BOM_UTF8), offset + len(codecs.BOM_UTF8)
            text = text.removesuffix(b"\n")
            if text.strip():
                yield RawLine(number, offset, text)

    def lines(self) -> Iterator[InputLine]:
        """Yield the requests of an input that was found valid. Raises InputDamaged if it no longer is."""
        for raw in self.raw_lines():
            yield _undamaged(raw)

    def spans(self) -> Iterator[LineSpan]:
        """Yield the positions of the requests of an input that was found valid."""
        for raw in self.raw_lines():
            line = _undamaged(raw)
            short_body = line.body if len(raw.text) <= _MAX_WAITING_BYTES else None
            yield LineSpan(line.number, line.custom_id, raw.offset, len(raw.text), short_body)

    def body(self, span: LineSpan) -> bytes:
        """Read the body of a request. Raises InputDamaged if the file now has another request there."""
        try:
            with self._lock:
                self._stream.seek(span.offset)
                text = self._stream.read(span.num_bytes)
        except OSError as error:
            raise unreadable(error) from error
        line = _undamaged(RawLine(span.number, span.offset, text))
        if line.custom_id != span.custom_id:
            text_now = (
                f"the custom_id was {short(span.custom_id)} when it was checked and is now {short(line.custom_id)}"
            )
            raise InputDamaged(BatchError("input_file_changed", text_now, span.number, "custom_id"))
        return line.body

    def _read_line(self, position: int, limit: int) -> bytes:
        with self._lock:
            self._stream.seek(position)
            return self._stream.readline(limit)

    def _skip_line(self, position: int) -> int:
        """Return the position after the end of the line."""
        while piece := self._read_line(position, _PIECE):
            position += len(piece)
            if piece.endswith(b"\n"):
                break
        return position


def read_lines(stream: BinaryIO) -> Iterator[InputLine]:
    """Yield the requests of an input that was found valid. Raises InputDamaged if it no longer is."""
    return InputReader(stream).lines()


def unreadable(error: OSError) -> InputDamaged:
    """Return the error to raise for an error of the file system."""
    return InputDamaged(BatchError("input_file_unreadable", f"the input cannot be read: {error}"))


def parse_line(number: int, text: bytes) -> InputLine | BatchError:
    """Return the request of a line, or the error in its format.

    If a field is repeated, its last value counts, as in Python's JSON parser.
    """
    if len(text) <= _SHORT_LINE:
        return _parse(number, text)
    # The parser holds the interpreter: long lines are parsed one at a time, with as much time for other threads in
    # between.
    with _parsing_long_line:
        started = time.monotonic()
        line = _parse(number, text)
        seconds = time.monotonic() - started
        if seconds > _NOTICEABLE_SECONDS:
            time.sleep(min(seconds, _LONGEST_REST))
    return line


_parsing_long_line = threading.Lock()


class _Fields(msgspec.Struct, forbid_unknown_fields=True):
    """The fields of a line as the bytes of their values."""

    custom_id: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    method: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    url: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    body: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


_decoder = msgspec.json.Decoder(_Fields)


def _undamaged(raw: RawLine) -> InputLine:
    line = parse_line(raw.number, raw.text)
    if isinstance(line, BatchError):
        raise InputDamaged(line)
    return line


def _parse(number: int, text: bytes) -> InputLine | BatchError:
    try:
        if not text.isascii():
            text.decode("utf-8")
    except UnicodeDecodeError as error:
        return BatchError("invalid_utf8", f"byte {error.start + 1} of the line is not UTF-8 text", number)
    try:
        fields = _decode(text)
    except msgspec.ValidationError as error:
        return _no_request(number, str(error))
    except UnicodeDecodeError:  # The name of a field contains half of a surrogate pair.
        return _unknown_field(number, "\ufffd")
    except msgspec.DecodeError as error:
        reason = str(error).removeprefix("JSON is malformed: ")
        return BatchError("invalid_json_line", f"the line is not valid JSON: {reason}", number)
    except RecursionError:
        reason = "it nests arrays and objects too deeply"
        return BatchError("invalid_json_line", f"the line is not valid JSON: {reason}", number)
    return _as_line(number, fields)


def _decode(text: bytes) -> _Fields:
    try:
        return _decoder.decode(text)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError:
        # JSON may contain half of a surrogate pair as an escape, which this parser refuses. As bytes it is accepted:
        # the body is refused when it is answered, and a custom_id is returned unchanged.
        written = _with_surrogates_as_bytes(text)
        if written == text:
            raise
    return _decoder.decode(written)


def _with_surrogates_as_bytes(text: bytes) -> bytes:
    written, end = bytearray(), 0
    for match in islice(_LONE_SURROGATE.finditer(text), _MAX_LONE_SURROGATES):
        if match[1] is not None:
            written += text[end : match.start(1) - len(rb"\u")]
            written += chr(int(match[1], 16)).encode("utf-8", "surrogatepass")
            end = match.end()
    return bytes(written + text[end:])


def _no_request(number: int, reason: str) -> BatchError:
    """Return the error of a line that is not an object, or has an unknown field."""
    match = _UNKNOWN_FIELD.fullmatch(reason)
    if match is None:
        return BatchError("invalid_json_line", "the line must be a JSON object", number)
    return _unknown_field(number, match[1])


def _unknown_field(number: int, name: str) -> BatchError:
    message = f"{short(name)} is not a field of a request; the fields are {', '.join(_FIELDS)}"
    return BatchError("unknown_parameter", message, number, name[:_LONGEST_CUSTOM_ID])


def _as_line(number: int, fields: _Fields) -> InputLine | BatchError:
    for name in _FIELDS:
        if getattr(fields, name) is msgspec.UNSET:
            return BatchError("missing_required_parameter", f"{name} is missing", number, name)
    assert isinstance(fields.body, msgspec.Raw)
    custom_id, method, url = (_value(getattr(fields, name)) for name in _FIELDS[:3])
    if not custom_id.is_string or not 0 < len(custom_id.text) <= _LONGEST_CUSTOM_ID:
        message = f"custom_id must be a string of 1 to {_LONGEST_CUSTOM_ID} characters"
        return BatchError("invalid_custom_id", message, number, "custom_id")
    if method != _Value("POST", is_string=True):
        return BatchError("invalid_method", f"method is {method}; it must be 'POST'", number, "method")
    if not url.is_string:
        return BatchError("invalid_url", f"url is {url}; it must be a string", number, "url")
    return InputLine(number, custom_id.text, url.text, bytes(fields.body))


class _Value(NamedTuple):
    """A value that must be a short string."""

    text: str
    """The string; for other values their JSON, and for a value that is too long its beginning."""
    is_string: bool

    def __str__(self) -> str:
        return short(self.text) if self.is_string else _cut(self.text)


def _value(raw: msgspec.Raw) -> _Value:
    data = memoryview(raw)
    is_string = bytes(data[:1]) == b'"'
    text = str(data[:_MAX_TEXT_BYTES], "utf-8", "surrogatepass" if len(data) <= _MAX_TEXT_BYTES else "replace")
    # One longer than any valid one is compared as it is written, and equals none of them.
    return _Value(json.loads(text) if is_string and len(data) <= _MAX_TEXT_BYTES else text, is_string)


def short(text: str) -> str:
    """Return a refused string in short form: it may be a whole document."""
    return _cut(repr(text[:100]))


def _cut(text: str) -> str:
    return text if len(text) <= 80 else text[:77] + "..."
