"""The code uses the field's words (docs/glossary.md) and names each public class once."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "archerfish"

# Words that identifiers no longer contain, and what the field says instead.
RETIRED = {
    "guess guesses guessing guessed": "draft tokens, propose, speculate",
    "stood stands": "accepted",
    "told tell tells": "reported, passed, returned",
    "ask asks asked": "request, query, parameters",
    "kept keeps": "cached, stored, retained",
    "beside": "alongside, next to",
    "nobody somebody whoever": "the component or sequence that is meant",
    "room rooms": "capacity, headroom, buffer, workspace",
    "place places": "index, slot, position, offset",
    "way ways": "method",
    "form forms": "grammar, response format",
    "product products": "gemm, matmul",
    "picked": "selected, logit indices",
    "turned": "transposed, rotated",
    "shelf": "arena",
    "roster": "sequence table",
    "foresight": "preemption check",
    "flights": "in-flight steps",
    "rehearsal": "profile run",
    "doze dozes": "backoff",
    "anew": "again",
    "upto": "until, end",
}
REPLACEMENTS = {word: instead for words, instead in RETIRED.items() for word in words.split()}

# Names of the standard library and of other libraries.
FOREIGN = {"FormParserError", "product", "scaled_dot_product_attention", "tell"}

# Words of prose that leave the reader to find out what is meant.
VAGUE = re.compile(r"\b(nobody|somebody|whoever)\b", re.IGNORECASE)


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def identifiers(path: Path) -> Iterator[tuple[int, str]]:
    """Every name that a module defines or uses, with its line."""
    yield 1, path.stem
    for node in ast.walk(ast.parse(path.read_text())):
        line = getattr(node, "lineno", 1)
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield line, name
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name):
                yield line, name
            case ast.keyword(arg=str(name)) | ast.alias(asname=str(name)):
                yield line, name


def words_of(identifier: str) -> list[str]:
    """`maxDraft_tokens` is max, draft, tokens."""
    return [word.lower() for word in re.findall(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+", identifier)]


def test_words_of_an_identifier_are_found_in_any_case() -> None:
    assert words_of("_maxDraft_tokensKV2") == ["max", "draft", "tokens", "kv"]
    assert words_of("KVCache") == ["kv", "cache"]
    assert words_of("NUM_ROWS") == ["num", "rows"]


def test_identifiers_use_the_words_of_the_field() -> None:
    retired = {
        f"{path.relative_to(ROOT)}:{line}: {identifier} has the word '{word}' (use: {REPLACEMENTS[word]})"
        for path in modules()
        for line, identifier in identifiers(path)
        if identifier not in FOREIGN
        for word in words_of(identifier)
        if word in REPLACEMENTS
    }
    assert not retired, "\n" + "\n".join(sorted(retired))


def test_public_classes_have_unique_names() -> None:
    definitions = defaultdict(list)
    for path in modules():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                definitions[node.name].append(f"{path.relative_to(ROOT)}:{node.lineno}")
    duplicates = {name: lines for name, lines in definitions.items() if len(lines) > 1}
    assert not duplicates, "\n" + "\n".join(f"{name}: {', '.join(lines)}" for name, lines in duplicates.items())


@pytest.mark.parametrize("folder", ["archerfish", "csrc", "docs"])
def test_prose_says_what_it_means(folder: str) -> None:
    """Code, comments, messages and docs name the component or the sequence that they speak of."""
    suffixes = {".py", ".md", ".cpp", ".h", ".inc", ".js", ".html"}
    vague = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in sorted((ROOT / folder).rglob("*"))
        if path.suffix in suffixes
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if VAGUE.search(line)
    ]
    assert not vague, "\n" + "\n".join(vague)
