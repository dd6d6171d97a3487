"""Compiles response formats into grammars over a model's vocabulary, and makes the compiler's errors readable.

The library that does it is imported with the first grammar: not every machine has it.
"""

import json
import re
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

from archerfish.request import Structured

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLParserLimits, LLTokenizer
    from llguidance._lib import JsonCompileOptions

T = TypeVar("T")

# Whitespace anywhere would let a model write nothing else for ever.
_LAYOUT: "JsonCompileOptions" = {"whitespace_flexible": False, "item_separator": ", ?", "key_separator": ": ?"}

_STACK_BYTES = 256 << 20
"""Stack of the compiling thread, enough for the longest grammar: the library recurses with each nested rule."""

_MAX_LENGTH = 500
"""Characters shown of a message that cannot be parsed."""
_MAX_CONTEXT = 50
"""Characters of a long line that are shown on either side of the mark."""
_OF_REGEX = re.compile(r"regex parse error:\n    (?P<text>.*)\n    (?P<before> *)\^+\nerror: (?P<what>.*)")
_OF_GRAMMAR = re.compile(
    r"(at )?(?P<line>\d+)\((?P<column>\d+)\): (?P<what>.*)(\n +\d+ \| (?P<text>.*))+\n *\^(\n +\d+ \| .*)*\s*"
)
"""Lines before and behind may be shown, too."""


def load_vocabulary(tokenizer: str, num_tokens: int, eos_token_ids: Sequence[int]) -> "LLTokenizer":
    """Load the text of a tokenizer.json. ValueError says why no answer of this model can follow a grammar."""
    from llguidance import LLTokenizer

    if not eos_token_ids:
        raise ValueError("the model names no end token, so an answer that is complete could not end")
    return LLTokenizer(tokenizer, n_vocab=num_tokens, eos_token=list(eos_token_ids))


def compile_grammar(structured: Structured, vocabulary: "LLTokenizer") -> "LLMatcher":
    """Return a matcher before the first token. ValueError says what is wrong with the grammar."""
    from llguidance import LLMatcher

    grammar, limits = _library_grammar(structured), _limits()
    matcher = _with_large_stack(lambda: LLMatcher(vocabulary, grammar, log_level=0, limits=limits))
    if matcher.is_error():
        raise ValueError(why(matcher))
    return matcher


def check_grammar(structured: Structured) -> None:
    """Check a grammar as far as that is possible without a vocabulary: ValueError says what is wrong with it."""
    from llguidance import LLMatcher

    grammar, limits = _library_grammar(structured), _limits()
    problem = _with_large_stack(lambda: LLMatcher.validate_grammar(grammar, limits=limits))
    if problem:
        raise ValueError(readable(problem))


def why(matcher: "LLMatcher") -> str:
    """Return why a matcher cannot go on."""
    problem = readable(matcher.get_error())
    if problem.startswith("NoExtension"):
        return "no text matches it"
    if "too many expressions" in problem or "too many states" in problem:
        return f"it is too large to be followed ({problem}); repeat less: x{{1000}} is fine, x{{1000000}} is not"
    if (row := re.search(r"Current row has \d+ items; max is \d+", problem)) is not None:
        return f"too much is allowed at one point of it ({row[0]}); use fewer optional properties or alternatives"
    return problem


def _limits() -> "LLParserLimits":
    from llguidance import LLParserLimits

    # A third of the usual fuel is enough for thousands of properties or choices; states take about 2 kB each, by row.
    return LLParserLimits(initial_lexer_fuel=300_000, max_lexer_states=50_000, verbose_errors=False)


def _library_grammar(structured: Structured) -> str:
    """Return the grammar as the library wants it."""
    from llguidance import LLMatcher

    if structured.json_schema is not None:
        return LLMatcher.grammar_from_json_schema(structured.json_schema, defaults=_LAYOUT)
    if structured.json_object:
        return LLMatcher.grammar_from_json_schema('{"type": "object"}', defaults=_LAYOUT)
    if structured.regex is not None:
        return LLMatcher.grammar_from_regex(structured.regex)
    if structured.choice:
        return LLMatcher.grammar_from_lark(as_lark(structured))
    if structured.structural_tag is not None:
        return _tagged(structured.structural_tag)
    assert structured.grammar is not None
    return LLMatcher.grammar_from_lark(_as_lark(structured.grammar))


def _tagged(text: str) -> str:
    """Return a grammar of free text in which the beginning of a structure is followed by its JSON and its end."""
    from llguidance import StructTag

    try:
        value = json.loads(text)
        triggers = [str(trigger) for trigger in value["triggers"]]
        tags = []
        for structure in value["structures"]:
            begin = structure["begin"]
            trigger = next((trigger for trigger in triggers if trigger and begin.startswith(trigger)), None)
            if trigger is None:
                raise ValueError(f"no trigger is the start of {begin!r}")
            tags.append(StructTag(trigger=trigger, begin=begin, grammar=structure["schema"], end=structure["end"]))
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        why = f"a structural tag has structures, each with begin, schema and end, and triggers ({error!r})"
        raise ValueError(why) from error
    if not tags:
        raise ValueError("a structural tag must have at least one structure")
    return StructTag.to_grammar(tags)


def as_lark(structured: Structured) -> str:
    """Return the grammar in Lark, as a part of a larger one. ValueError says what is wrong with it."""
    if structured.grammar is not None:
        return _as_lark(structured.grammar)
    if structured.choice:
        # One terminal, not one for each: thousands of those would exceed the limit of a parser's row.
        return f"start: CHOICE\nCHOICE: {' | '.join(map(json.dumps, structured.choice))}"
    if structured.structural_tag is not None:
        grammar = _tagged(structured.structural_tag)
        if grammar.startswith("{"):
            raise ValueError("with tools or reasoning, each schema of a structural tag must be a JSON schema")
        return grammar
    if structured.regex is not None:
        return f"start: TEXT\nTEXT: /{_lark_regex(structured.regex)}/"
    schema = json.loads(structured.json_schema or '{"type": "object"}')
    return f"start: %json {json.dumps({'x-guidance': _LAYOUT, **schema})}"


def _lark_regex(regex: str) -> str:
    """Return the expression as Lark writes it: within slashes and on one line."""
    written = re.sub(r"\\.|/", lambda match: match[0] if len(match[0]) == 2 else r"\/", regex, flags=re.DOTALL)
    return written.replace("\\\n", r"\n").replace("\n", r"\n")


def _as_lark(grammar: str) -> str:
    """Return the grammar in Lark, converted from GBNF (llama.cpp's grammars, which begin at root) if it is that."""
    if not re.search(r"^\s*root\s*::=", grammar, re.MULTILINE):
        return grammar
    from llguidance.gbnf_to_lark import gbnf_to_lark

    try:
        return gbnf_to_lark(grammar)
    # The converter raises plain exceptions, and one of Python's own where brackets nest too deeply.
    except Exception as error:
        raise ValueError(f"this GBNF is not understood: {error}") from error


def _with_large_stack(work: Callable[[], T]) -> T:
    """Run on a thread with a large stack: an overflow would end the process."""
    before = threading.stack_size(_STACK_BYTES)
    try:
        pool = ThreadPoolExecutor(1)
        future = pool.submit(work)
    finally:
        threading.stack_size(before)
    with pool:
        return future.result()


def readable(problem: str) -> str:
    """Return the library's message in few lines: what is wrong, where, and the text with a mark below it.

    The first line of a message is complete without the others.
    """
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
