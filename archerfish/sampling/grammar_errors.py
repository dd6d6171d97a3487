"""Makes errors of the grammar library readable: what is wrong, where, and the text with a mark below it.

The first line of a message is complete without the others.
"""

import re

_MAX_LENGTH = 500
"""Characters shown of a message that cannot be parsed."""
_MAX_CONTEXT = 50
"""Characters of a long line that are shown on either side of the mark."""
_OF_REGEX = re.compile(r"regex parse error:\n    (?P<text>.*)\n    (?P<before> *)\^+\nerror: (?P<what>.*)")
_OF_GRAMMAR = re.compile(
    r"(at )?(?P<line>\d+)\((?P<column>\d+)\): (?P<what>.*)(\n +\d+ \| (?P<text>.*))+\n *\^(\n +\d+ \| .*)*\s*"
)
"""Lines before and behind may be shown, too."""


def readable(problem: str) -> str:
    """Return the library's message in few lines."""
    problem = problem.removesuffix("<non-verbose/>")
    if (match := _OF_REGEX.search(problem)) is not None:
        column = len(match["before"]) + 1
        return _marked(f"{match['what']} at character {column}", match["text"], column)
    if (match := _OF_GRAMMAR.fullmatch(problem)) is not None:
        column = int(match["column"])
        return _marked(f"{match['what']} at line {match['line']}, column {column}", match["text"], column)
    return _in_one_line(problem)


def _marked(message: str, text: str, column: int) -> str:
    first = max(0, column - 1 - _MAX_CONTEXT)
    shown = text[first : column + _MAX_CONTEXT]
    return f"{message}\n    {shown}\n    {' ' * (column - 1 - first)}^"


def _in_one_line(text: str) -> str:
    return " ".join(text.split())[:_MAX_LENGTH]
