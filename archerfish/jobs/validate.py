"""Checks the input of a batch line by line, and reads the lines of one that was found good. Knows no store.

What is checked is the form of each line. Its body is judged when it is answered: one that is refused is an error of
that line alone, while a line that is no request at all, or has the name of another, fails the whole batch.
"""

import codecs
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO, NamedTuple, NoReturn

from archerfish.api.endpoints import ENDPOINTS
from archerfish.jobs.records import BatchError

_FIELDS = ("custom_id", "method", "url", "body")
_LONGEST_CUSTOM_ID = 512
_PIECE = 1024 * 1024
_NO_LIMIT = 2**40


@dataclass(frozen=True, slots=True, kw_only=True)
class InputLimits:
    """How much a batch may ask for at once."""

    max_lines: int = 50_000
    """Lines in one batch."""
    max_line_bytes: int = 16 * 1024 * 1024
    """Bytes in one line."""
    max_errors: int = 20
    """Errors that are told one by one; of the others only the number is."""


class InputLine(NamedTuple):
    """One request of a batch."""

    number: int
    """The file's first line is 1."""
    custom_id: str
    url: str
    body: Any
    """Any JSON value; only an object can be answered."""


class Verdict(NamedTuple):
    num_lines: int
    errors: list[BatchError]
    """None if the batch can run."""


class InputDamaged(Exception):
    """A line that was good when it was checked cannot be read."""

    def __init__(self, error: BatchError) -> None:
        super().__init__(f"line {error.line}: {error.message}")
        self.error = error


def validate(stream: BinaryIO, endpoint: str | None, limits: InputLimits | None = None) -> Verdict:
    """Read a whole input. With an endpoint, every line must ask for that; without, for any there is.

    Blank lines are skipped; they count in the numbers of lines, not as requests.
    """
    limits = limits or InputLimits()
    findings = _Findings(limits.max_errors)
    seen: dict[str, int] = {}
    num_lines = 0
    for number, raw in _raw_lines(stream, limits.max_line_bytes):
        num_lines += 1
        if num_lines > limits.max_lines:
            most = f"the file has more than {limits.max_lines:,} requests; split it into several batches"
            findings.add(BatchError("too_many_tasks", most))
            break
        line = _parse(number, raw, limits.max_line_bytes)
        if isinstance(line, BatchError):
            findings.add(line)
            continue
        for error in _check(line, endpoint, seen):
            findings.add(error)
    if num_lines == 0:
        findings.add(BatchError("empty_file", "the file holds no requests; write one JSON object on each line"))
    return Verdict(num_lines, findings.errors())


def read_lines(stream: BinaryIO) -> Iterator[InputLine]:
    """The requests of an input that was found good. Raises InputDamaged where it is not any more."""
    for number, raw in _raw_lines(stream, _NO_LIMIT):
        line = _parse(number, raw, _NO_LIMIT)
        if isinstance(line, BatchError):
            raise InputDamaged(line)
        yield line


class _Findings:
    """The first errors one by one, then only their number."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: list[BatchError] = []
        self._num_more = 0

    def add(self, error: BatchError) -> None:
        if len(self._kept) < self._most:
            self._kept.append(error)
        else:
            self._num_more += 1

    def errors(self) -> list[BatchError]:
        more = [BatchError("more_errors", f"and {self._num_more:,} more")] if self._num_more else []
        return self._kept + more


def _raw_lines(stream: BinaryIO, max_line_bytes: int) -> Iterator[tuple[int, bytes]]:
    """Lines that are not blank. Of one that is too long, a piece that is longer than allowed."""
    number = 0
    while raw := stream.readline(max_line_bytes + 2):
        number += 1
        if len(raw) > max_line_bytes and not raw.endswith(b"\n"):
            _skip_line(stream)
        if number == 1:
            raw = raw.removeprefix(codecs.BOM_UTF8)
        raw = raw.removesuffix(b"\n")
        if raw.strip():
            yield number, raw


def _skip_line(stream: BinaryIO) -> None:
    while (piece := stream.readline(_PIECE)) and not piece.endswith(b"\n"):
        pass


def _parse(number: int, raw: bytes, max_line_bytes: int) -> InputLine | BatchError:
    if len(raw) > max_line_bytes:
        return BatchError("line_too_long", f"the line exceeds {max_line_bytes:,} bytes", number)
    try:
        record = json.loads(raw.decode("utf-8"), parse_constant=_refuse_constant)
    except UnicodeDecodeError as error:
        return BatchError("invalid_utf8", f"byte {error.start + 1} of the line is not UTF-8 text", number)
    # Numbers of thousands of digits and very deep nesting fail in ways of their own.
    except (ValueError, RecursionError) as error:
        return BatchError("invalid_json_line", f"the line is not valid JSON: {error}", number)
    if not isinstance(record, dict):
        return BatchError("invalid_json_line", "the line must be a JSON object", number)
    return _as_line(number, record)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number that JSON knows")


def _as_line(number: int, record: dict[str, Any]) -> InputLine | BatchError:
    for name in _FIELDS:
        if name not in record:
            return BatchError("missing_required_parameter", f"{name} is missing", number, name)
    for name in record:
        if name not in _FIELDS:
            known = f"{name!r} is not a field of a request; there are {', '.join(_FIELDS)}"
            return BatchError("unknown_parameter", known, number, name)
    custom_id, method, url, body = (record[name] for name in _FIELDS)
    if not isinstance(custom_id, str) or not custom_id or len(custom_id) > _LONGEST_CUSTOM_ID:
        text = f"custom_id must be a text of 1 to {_LONGEST_CUSTOM_ID} characters"
        return BatchError("invalid_custom_id", text, number, "custom_id")
    if method != "POST":
        return BatchError("invalid_method", f"method is {_short(method)} and must be 'POST'", number, "method")
    if not isinstance(url, str):
        return BatchError("invalid_url", f"url is {_short(url)} and must be a text", number, "url")
    return InputLine(number, custom_id, url, body)


def _check(line: InputLine, endpoint: str | None, seen: dict[str, int]) -> Iterator[BatchError]:
    """What is wrong with a line beside its form. Adds it to those seen."""
    first = seen.setdefault(line.custom_id, line.number)
    if first != line.number:
        text = f"custom_id {_short(line.custom_id)} of line {line.number} is already that of line {first}"
        yield BatchError("duplicate_custom_id", text, line.number, "custom_id")
    if endpoint is None and line.url not in ENDPOINTS:
        text = f"url is {_short(line.url)} and must be one of {', '.join(ENDPOINTS)}"
        yield BatchError("invalid_url", text, line.number, "url")
    elif endpoint is not None and line.url != endpoint:
        text = f"url is {_short(line.url)}, but the batch's endpoint is {endpoint!r}"
        yield BatchError("mismatched_url", text, line.number, "url")


def _short(value: object) -> str:
    """A refused value may be a whole document."""
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
