"""Limits on a JSON text, checked on its bytes before anything is parsed."""

import re
from typing import NamedTuple

from archerfish.errors import RequestError

_WINDOW = 1 << 16
"""Bytes that are looked at together, which bounds the memory that this takes."""
_BRACKETS = re.compile(rb"[\[\]{}]")
_OPENING = b"[{"


class JsonLimits(NamedTuple):
    """Limits on the number and depth of values in a JSON text."""

    max_items: int
    """Values, object members and empty containers, at any depth."""
    max_depth: int = 64
    """Arrays and objects within one another."""

    def check(self, text: bytes) -> None:
        """Raise a RequestError that names the limit which the text exceeds. Text that is no JSON may pass."""
        # Of the same length, and every quote that is left begins or ends a string.
        plain = text.replace(rb"\\", b"  ").replace(rb"\"", b"  ") if b"\\" in text else text
        num_items, depth, in_string = 1, 0, False
        for start in range(0, len(plain), _WINDOW):
            pieces = plain[start : start + _WINDOW].split(b'"')
            outside = b" ".join(pieces[in_string::2])
            in_string ^= len(pieces) % 2 == 0
            num_items += outside.count(b",") + outside.count(b"[") + outside.count(b"{")
            if num_items > self.max_items:
                raise RequestError(
                    f"the body has more than {self.max_items:,} JSON items; send less, or start with --max-body-items"
                )
            for bracket in _BRACKETS.findall(outside):
                depth += 1 if bracket in _OPENING else -1
                if depth < 0:
                    return  # The parser refuses it at this place.
                if depth > self.max_depth:
                    raise RequestError(f"the body nests arrays and objects more than {self.max_depth} levels deep")
