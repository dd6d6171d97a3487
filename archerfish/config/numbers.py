"""Numbers as people write them. 1k is a thousand, 1K is 1024, as in vLLM."""

import re
from fractions import Fraction

from archerfish.errors import ConfigError

_SCALE = {
    suffix: base ** (power + 1)
    for suffixes, base in (("kmgt", 1000), ("KMGT", 1024))
    for power, suffix in enumerate(suffixes)
}
_NUMBER = re.compile(r"[+-]?\d+(\.\d+)?")


def parse_count(text: str) -> int:
    """'4096', '1k' (1000), '1K' (1024), '25.6k' (25600), '2G' (2 GiB). Fractions need a suffix."""
    text = text.strip().replace("_", "")
    number, scale = (text[:-1], _SCALE[text[-1]]) if text and text[-1] in _SCALE else (text, 1)
    value = Fraction(number) * scale if _NUMBER.fullmatch(number) else None
    if value is None or value.denominator != 1:
        raise ConfigError(
            f"{text!r} is not a whole number; write for example 4096, 4k (4000), 4K (4096) or 25.6k (25600)"
        )
    return int(value)


def format_bytes(count: float) -> str:
    """'1.50 GiB': three digits and a binary unit."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024 or unit == "GiB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.2f} {unit}"
        count /= 1024
    raise AssertionError("unreachable")
