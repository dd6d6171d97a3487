"""Checks the input of a batch line by line. Knows no store.

Only the format of each line is checked. Its body is checked when it is answered: a refused body is an error of that
line alone, while a line that is not a request, or has the custom_id of another, fails the whole batch.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import BinaryIO, NamedTuple

from archerfish.api.endpoints import ENDPOINTS
from archerfish.jobs.input_lines import InputLine, InputReader, RawLine, parse_line, short
from archerfish.jobs.records import BatchError


@dataclass(frozen=True, slots=True, kw_only=True)
class InputLimits:
    """Limits of the input of one batch."""

    max_lines: int = 50_000
    """Most lines in a batch."""
    max_line_bytes: int = 16 * 1024 * 1024
    """Most bytes in a line."""
    max_errors: int = 20
    """Errors that are listed one by one; further ones are only counted."""


class ValidationResult(NamedTuple):
    num_lines: int
    errors: list[BatchError]
    """Errors; none if the batch can run."""


def validate(
    stream: BinaryIO,
    endpoint: str | None,
    limits: InputLimits | None = None,
    check: Callable[[], None] = lambda: None,
) -> ValidationResult:
    """Check a whole input. With an endpoint, every line must name it; without, any supported one.

    Blank lines count in line numbers, but not as requests. `check` is called before each line, and may raise.
    """
    limits = limits or InputLimits()
    findings = _Findings(limits.max_errors)
    seen: dict[str, int] = {}
    num_lines = 0
    for raw in InputReader(stream).raw_lines(limits.max_line_bytes):
        check()
        num_lines += 1
        if num_lines > limits.max_lines:
            most = f"the file has more than {limits.max_lines:,} requests; split it into several batches"
            findings.add(BatchError("too_many_tasks", most))
            break
        line = _parse(raw, limits.max_line_bytes)
        if isinstance(line, BatchError):
            findings.add(line)
            continue
        for error in _check(line, endpoint, seen):
            findings.add(error)
    if num_lines == 0:
        findings.add(BatchError("empty_file", "the file holds no requests; write one JSON object on each line"))
    return ValidationResult(num_lines, findings.errors())


class _Findings:
    """The first errors one by one, then only their number."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._listed: list[BatchError] = []
        self._num_more = 0

    def add(self, error: BatchError) -> None:
        if len(self._listed) < self._most:
            self._listed.append(error)
        else:
            self._num_more += 1

    def errors(self) -> list[BatchError]:
        more = [BatchError("more_errors", f"and {self._num_more:,} more")] if self._num_more else []
        return self._listed + more


def _parse(raw: RawLine, max_line_bytes: int) -> InputLine | BatchError:
    if len(raw.text) > max_line_bytes:
        return BatchError("line_too_long", f"the line exceeds {max_line_bytes:,} bytes", raw.number)
    return parse_line(raw.number, raw.text)


def _check(line: InputLine, endpoint: str | None, seen: dict[str, int]) -> Iterator[BatchError]:
    """Yield the errors of a line that is a request, and add it to those seen."""
    first = seen.setdefault(line.custom_id, line.number)
    if first != line.number:
        text = f"custom_id {short(line.custom_id)} of line {line.number} is already used by line {first}"
        yield BatchError("duplicate_custom_id", text, line.number, "custom_id")
    if endpoint is None and line.url not in ENDPOINTS:
        text = f"url is {short(line.url)}; it must be one of {', '.join(ENDPOINTS)}"
        yield BatchError("invalid_url", text, line.number, "url")
    elif endpoint is not None and line.url != endpoint:
        text = f"url is {short(line.url)}, but the batch's endpoint is {endpoint!r}"
        yield BatchError("mismatched_url", text, line.number, "url")
