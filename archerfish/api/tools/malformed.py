"""Calls that a marker announced and that cannot be parsed: their ends and their errors."""

import json
import re
from dataclasses import dataclass

from archerfish.api.tools.formats import ToolFormat
from archerfish.api.tools.scanner import Scanner, Steps

NO_OBJECT = "the arguments are not a JSON object"


@dataclass(slots=True)
class CallSoFar:
    """The parts of a call that were read."""

    name: str = ""
    is_unknown: bool = False
    """Whether there is no function of that name."""
    arguments: str | None = None
    """Where they are not given out while they are read."""
    reads_arguments: bool = False
    has_begun: bool = False
    """Whether it was given out."""

    def error(self, text: str, has_ended: bool) -> str:
        """Why its text cannot be read; `has_ended`: the text goes on behind it."""
        if not has_ended:
            return f"the call was cut off {self._progress()}"
        if not text:
            return "the call is empty"
        if self.reads_arguments:
            return NO_OBJECT
        try:
            json.loads(text, strict=False)
        except (ValueError, RecursionError):
            return "the call is not valid JSON"
        return "the call is not an object with a name and arguments"

    def _progress(self) -> str:
        if self.reads_arguments:
            return "in its arguments"
        if not self.name:
            return "before its name"
        return "before its arguments" if self.arguments is None else "behind its arguments"


class CallBounds:
    """Finds the ends of calls, however they are written."""

    def __init__(self, tool_format: ToolFormat) -> None:
        self.stops = (tool_format.start, *tool_format.closers)
        """A call ends before these at the latest."""
        self._inner = tool_format.inner_markers
        own_end = tuple(closer for closer in tool_format.closers if tool_format.call.endswith(closer))
        self._signs = self._inner or own_end
        markers = (*self.stops, *self._signs)
        self._any_marker = re.compile("|".join(map(re.escape, markers)))
        self._longest = max(map(len, markers))

    def read(self, scanner: Scanner) -> Steps[bool]:
        """All of a call that cannot be read; False if the text ends before it does."""
        while True:
            has_ended = yield from scanner.broken((*self.stops, *self._inner))
            if not (yield from scanner.skip_one_of(self._inner)):
                break
        if self._inner:
            return has_ended
        own_end = yield from self._find_sign(scanner)
        if own_end is not None:
            scanner.at = own_end
        return has_ended or own_end is not None

    def has_sign(self, scanner: Scanner) -> Steps[bool]:
        """Whether a marker comes that there is only in a call, before any that begins or ends one. Reads nothing."""
        return (yield from self._find_sign(scanner)) is not None

    def _find_sign(self, scanner: Scanner) -> Steps[int | None]:
        begin = scanner.at
        while self._signs:
            marker = self._any_marker.search(scanner.text, begin)
            if marker is not None:
                return marker.start() if marker[0] in self._signs else None
            if scanner.is_complete:
                return None
            begin = max(begin, len(scanner.text) - self._longest)
            yield
        return None
