"""Checks of single values that users give, each with an error that names the value and says what is allowed."""

from typing import Any

from archerfish.errors import InvalidParameter


def check_int(name: str, value: object, least: int, most: int) -> None:
    """Raise unless this is a whole number within these bounds."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise InvalidParameter(name, value, f"it must be a whole number of at least {least} and at most {most}")


def check_float(name: str, value: object, least: float, most: float, *, open_below: bool = False) -> None:
    """Raise unless this is a number within these bounds; with `open_below` the lower one itself is refused."""
    bound = "above" if open_below else "at least"
    # Not-a-number fails every comparison.
    fits = isinstance(value, (int, float)) and not isinstance(value, bool) and least <= value <= most
    if not fits or (open_below and value == least):
        raise InvalidParameter(name, value, f"it must be a number {bound} {least:g} and at most {most:g}")


def check_bool(name: str, value: object) -> None:
    """Raise unless this is true or false."""
    if not isinstance(value, bool):
        raise InvalidParameter(name, value, "it must be true or false")


def as_tuple(name: str, values: object) -> tuple[Any, ...]:
    """The items of a list; none of them for None."""
    if values is None:
        return ()
    if not isinstance(values, (list, tuple)):
        raise InvalidParameter(name, values, "it must be a list")
    return tuple(values)
