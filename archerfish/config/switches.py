"""True and false as people write them in files, environment variables and flags."""

_TRUE = frozenset(("true", "1", "yes", "on"))
_FALSE = frozenset(("false", "0", "no", "off"))


def read_switch(text: str) -> bool | None:
    """Return what a text means; None if it is neither true nor false."""
    lowered = text.lower()
    return True if lowered in _TRUE else False if lowered in _FALSE else None
