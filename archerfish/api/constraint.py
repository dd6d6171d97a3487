"""What the tokens of an answer must be: its form, its calls, and reasoning before both, as one grammar.

Parts are grammars of their own (llguidance's Lark), nested in one that says how they follow one another.
"""

from collections.abc import Iterable
from typing import NamedTuple

from archerfish.api.reasoning.thinking import TagIds
from archerfish.api.tool_use import ToolUse
from archerfish.errors import InvalidParameter
from archerfish.request import Structured
from archerfish.sampling.grammar_compiler import as_lark

_SPACE = r"/[ \t\r\n]{0,8}/"
"""Between reasoning and what follows it."""


class ReasoningPrefix(NamedTuple):
    """The reasoning that an answer may begin with."""

    start_tag: str
    end_tag: str
    tags: TagIds
    is_open: bool
    """Whether the answer begins within it."""
    max_tokens: int | None = None


def constraint(tools: ToolUse, structured: Structured | None, thought: ReasoningPrefix | None) -> Structured | None:
    """Return the grammar of a whole answer; None if it is free."""
    grammar: str | None = None
    if tools.is_required:
        grammar = tools.calls
    elif tools.calls is not None and tools.marker is not None:
        words = _among_words(tools.calls, tools.marker, parallel=tools.parallel)
        grammar = words if structured is None else _either(_lark(structured), tools.calls)
    elif thought is None:
        return structured
    elif structured is not None:
        grammar = _lark(structured)
    if thought is not None and (grammar is not None or thought.max_tokens is not None):
        grammar = _behind_thought(thought, grammar)
    return None if grammar is None else Structured(grammar=grammar)


def _lark(structured: Structured) -> str:
    try:
        return as_lark(structured)
    except ValueError as error:
        raise InvalidParameter(structured.given, "...", str(error)) from error


def _either(first: str, second: str) -> str:
    """One of two grammars."""
    return _grammar("first | second", [_nested("first", first), _nested("second", second)])


def _among_words(calls: str, marker: int, *, parallel: bool) -> str:
    """Any tokens, but calls as the grammar has them wherever the marker comes, which each begins with."""
    repeated = "*" if parallel else "?"
    words = f"words: <[^{marker}]>*"
    return _grammar(f"words (calls words){repeated}", [words, _nested("calls", calls)])


def _behind_thought(thought: ReasoningPrefix, grammar: str | None) -> str:
    """Reasoning, which is free, and then what the grammar says; None says nothing."""
    start, end = thought.tags.start, thought.tags.end
    rules = []
    if end is None:
        # All text up to the tag, and the tag.
        rules.append(f'thought[suffix="{thought.end_tag}"]: /(?s:.*)/')
    elif thought.max_tokens is None:
        rules += ["thought: inner end", f"inner: <[^{end}]>*", f"end: <[{end}]>"]
    else:
        rules += ["thought: inner end", f"inner[max_tokens={thought.max_tokens}]: /(?s:.*)/", f"end: <[{end}]>"]
    if grammar is None:
        assert start is not None, "a limit needs tags that are tokens"
        rules.append(f"rest: <[^{start}]>*")
    else:
        rules += ["rest: space answer", f"space: {_SPACE}", _nested("answer", grammar)]
    opening = f'"{thought.start_tag}"' if start is None else f"<[{start}]>"
    if thought.is_open:
        # Some models write the tag although they need not.
        return _grammar("thought rest", rules)
    alone = "rest" if grammar is None else "answer"
    return _grammar(f"{alone} | {opening} thought rest", rules)


def _grammar(start: str, rules: Iterable[str]) -> str:
    return "\n".join(["%llguidance {}", f"start: {start}", *rules]) + "\n"


def _nested(name: str, grammar: str) -> str:
    return f"{name}: %lark {{\n{grammar}\n}}"
