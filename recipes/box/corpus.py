"""The raw files as documents: texts as they are, and conversations in the models' format."""

import json
import lzma
import random
import re
import tarfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from recipes.box.chat import END_OF_TEXT, write_conversation

MIXED_PACK = "mixed.tar.xz"
BOOKS_PACK = "gutenberg_children.txt.xz"
BOOKS_FILE = "gutenberg_children.txt"


def unpack(directory: Path, target: Path) -> None:
    """Unpack whichever of the two packs is in the directory; they may arrive one at a time."""
    target.mkdir(parents=True, exist_ok=True)
    if (directory / MIXED_PACK).exists():
        with tarfile.open(directory / MIXED_PACK) as pack:
            pack.extractall(target, filter="data")
    if (directory / BOOKS_PACK).exists():
        with lzma.open(directory / BOOKS_PACK) as packed:
            (target / BOOKS_FILE).write_bytes(packed.read())


def text_documents(path: Path) -> list[str]:
    """Yield documents that end with a line <|endoftext|>."""
    parts = path.read_text(encoding="utf-8").split(END_OF_TEXT)
    return [part.strip() for part in parts if part.strip()]


def tiny_stories(separated: Path, by_line: Path, seed: int) -> list[str]:
    """Return short stories, each alone, and all of them once more in collections of a few.

    The two samples separate stories and paragraphs differently; here, paragraphs are always two line breaks apart. In
    collections, stories are separated like paragraphs, as in the files that such stories come from.
    """
    stories = [re.sub(r" *\n+", "\n\n", story) for story in text_documents(separated)]
    # One line break between stories, two between their paragraphs.
    parts = re.split(r"(?<!\n)\n(?!\n)", by_line.read_text(encoding="utf-8"))
    stories += [part.strip() for part in parts if len(part.strip()) > 100]
    rng = random.Random(seed)
    rng.shuffle(stories)
    collections, first = [], 0
    while first < len(stories):
        length = rng.randint(3, 12)
        collections.append("\n\n".join(stories[first : first + length]))
        first += length
    return stories + collections


def storybook(path: Path) -> list[str]:
    """Return picture books, whose lines break wherever the page did: joined to sentences, with the title on its own
    line.
    """
    written = []
    for document in text_documents(path):
        title, _, text = document.partition("\n")
        written.append(f"{title}\n\n{' '.join(text.split())}")
    return written


def json_lines(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)


def tool_signatures(dialogues: Sequence[dict[str, Any]]) -> dict[str, dict[str, list[str]]]:
    """Return, for each service, the functions that its dialogues call with their arguments."""
    found: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for dialogue in dialogues:
        for message in dialogue["messages"]:
            call = message.get("tool_call")
            if call and isinstance(call["arguments"], dict):
                for service in dialogue.get("services", ["shop"]):
                    found[service][call["name"]].update(call["arguments"])
    return {
        service: {name: sorted(arguments) for name, arguments in sorted(functions.items())}
        for service, functions in found.items()
    }


def tools_of(dialogue: dict[str, Any], signatures: dict[str, dict[str, list[str]]]) -> dict[str, list[str]]:
    """Return the functions of all services of a dialogue."""
    merged: dict[str, list[str]] = {}
    for service in dialogue.get("services", ["shop"]):
        merged.update(signatures.get(service, {}))
    return merged


def tool_dialogues(path: Path) -> list[str]:
    dialogues = list(json_lines(path))
    signatures = tool_signatures(dialogues)
    return [write_conversation(one["messages"], tools_of(one, signatures)) for one in dialogues]


def small_talk(path: Path) -> list[str]:
    """Return dialogues of two people by turns; the second is the assistant."""
    written = []
    for line in json_lines(path):
        turns = line["turns"]
        messages = [
            {"role": "assistant" if place % 2 else "user", "content": turn.strip()} for place, turn in enumerate(turns)
        ]
        written.append(write_conversation(messages))
    return written


def word_problems(path: Path) -> list[str]:
    return [
        write_conversation(
            [{"role": "user", "content": one["question"]}, {"role": "assistant", "content": one["answer"]}]
        )
        for one in json_lines(path)
    ]
