"""Finds the function that a call means by the name that the model wrote."""

from collections.abc import Collection

from archerfish.api.tools.checks import is_function_name


class FunctionNames:
    """The functions that may be called. Names are forgiven their case, underscores and hyphens where one is meant."""

    def __init__(self, known: Collection[str] | None) -> None:
        """Without `known`, whatever could be the name of a function is one."""
        self.known = known
        plain = [_plain(name) for name in known or ()]
        self._by_plain = {
            short: name for short, name in zip(plain, known or (), strict=True) if plain.count(short) == 1
        }

    def find(self, written: str) -> str | None:
        """The function that is meant."""
        if not is_function_name(written):
            return None
        if self.known is None or written in self.known:
            return written
        return self._by_plain.get(_plain(written))

    def has_one_that_begins(self, written: str) -> bool:
        """Whether this is known to be the beginning of a function's name."""
        return any(_plain(name).startswith(_plain(written)) for name in self.known or ())

    def error(self, written: str) -> str:
        """Why no function is meant."""
        if self.known is None:
            return f"{written!r} cannot be the name of a function"
        return f"there is no function {written!r}; there are {', '.join(self.known)}"


def _plain(name: str) -> str:
    return name.replace("_", "").replace("-", "").casefold()
