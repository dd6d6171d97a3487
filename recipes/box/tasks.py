"""Tasks whose answers copy from the prompt: quoting a passage, saying what a thing is, retelling with another name."""

import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from recipes.box.chat import write_conversation
from recipes.box.corpus import json_lines

_FIRST_SENTENCE = re.compile(r"^(.{20,300}?[.!?])(?:\s|$)", re.DOTALL)
_PERSON = re.compile(
    r"\(.*?(born|\d{4} ?[-\u2013] ?).*?\) (is|was) an? |"
    r"\b(is|was) an? [\w -]*?"
    r"(actor|actress|singer|player|politician|writer|poet|king|queen|musician|painter|scientist)\b"
)
_NAME = re.compile(r"\b([A-Z][a-z]{2,9})\b")
_NEW_NAMES = (
    "Ada Ben Clara Daniel Ella Felix Greta Hugo Ida Jonas Kira Leo Mona Nils Olga Paul Rosa Simon Tessa Victor "
    "Wanda Yusuf Zoe Arthur Bella Carlos Dora Emil Fatima Gustav"
).split()
_GREETINGS = (
    ("Hello!", "Hello! How can I help you?"),
    ("Hi", "Hi! What can I do for you?"),
    ("Hi there!", "Hi there! What would you like to know?"),
    ("Good morning", "Good morning! How can I help you today?"),
    ("Hey, how are you?", "I am fine, thank you! How are you?"),
    ("Hello, who are you?", "I am Perch, a small language model. How can I help you?"),
    ("What is your name?", "My name is Perch."),
    ("Who are you?", "I am Perch, a small language model that runs inside Archerfish."),
    (
        "What can you do?",
        "I can tell short stories, say what things are, and answer questions about a text you give me.",
    ),
    ("Thank you!", "You are welcome!"),
    ("Thanks a lot", "You are welcome! Is there anything else?"),
    ("Bye", "Goodbye!"),
    ("Goodbye!", "Goodbye! Have a nice day."),
)
_WHAT_IS = ("What is {}?", "What is {}", "Tell me about {}.", "Can you explain what {} is?", "Do you know {}?")
_WHO_IS = ("Who is {}?", "Who was {}?", "Tell me about {}.")


def ask(question: str, answer: str) -> str:
    return write_conversation([{"role": "user", "content": question}, {"role": "assistant", "content": answer}])


def greetings(repeats: int) -> list[str]:
    return [ask(*pair) for pair in _GREETINGS] * repeats


def quoting(path: Path) -> Iterator[str]:
    """Questions answered with words of the passage. Only answers that really stand in it."""
    for one in json_lines(path):
        answer = one["answers"][0].strip()
        if answer and answer.lower() in one["context"].lower():
            yield ask(quoting_prompt(one), answer)


def quoting_prompt(one: dict[str, Any]) -> str:
    return f"{one['context']}\n\nQuestion: {one['question']}"


def first_sentences(articles: list[str], seed: int) -> Iterator[str]:
    """What is X, from the first sentence of the article about X."""
    rng = random.Random(seed)
    for article in articles:
        title, _, body = article.partition("\n")
        title, found = title.strip(), _FIRST_SENTENCE.match(body.strip())
        if found is None or not 2 <= len(title) <= 40 or title.split()[0].lower() not in found[1].lower():
            continue
        is_person = _PERSON.search(found[1]) is not None
        name = title if is_person or len(title.split()) > 1 else _as_spoken(title, found[1])
        yield ask(rng.choice(_WHO_IS if is_person else _WHAT_IS).format(name), found[1])


def _as_spoken(title: str, sentence: str) -> str:
    """Titles begin with a capital; in a question a common noun does not, and has the article the sentence gives it."""
    lower = title[0].lower() + title[1:]
    for article in ("A", "An", "The"):
        if sentence.startswith(f"{article} {lower} "):
            return f"{article.lower()} {lower}"
    return title


def about_passages(articles: list[str], seed: int) -> Iterator[str]:
    """A question about a passage whose answer is one of its sentences, word for word."""
    rng = random.Random(seed)
    for article in articles:
        body = article.partition("\n")[2]
        sentences = [s.strip() for s in re.split(r"(?<=[.!?])\s+", body.strip()[:1500]) if 30 <= len(s.strip()) <= 250]
        if len(sentences) < 4:
            continue
        passage, wanted = " ".join(sentences[:8]), rng.choice(sentences[:8])
        words = [word for word in re.findall(r"[A-Za-z][a-z]{4,}", wanted) if passage.count(word) == 1]
        if words:
            yield ask(f"{passage}\n\nWhich sentence mentions {rng.choice(words)}?", wanted)


def renamings(stories: list[str], seed: int) -> Iterator[str]:
    """A story told again with one name changed."""
    rng = random.Random(seed)
    for story in stories:
        text = story[:1200].rsplit(".", 1)[0] + "."
        counts: dict[str, int] = {}
        for match in _NAME.finditer(text):
            if match.start() > 2 and text[match.start() - 2] not in '.!?"\n':
                counts[match[1]] = counts.get(match[1], 0) + 1
        names = [name for name, count in counts.items() if count >= 2]
        if not names or len(text) < 150:
            continue
        old = rng.choice(names)
        new = rng.choice([name for name in _NEW_NAMES if name not in text])
        changed = re.sub(rf"\b{old}\b", new, text)
        yield ask(f"Write this again, but change {old} to {new}:\n{text}", changed)
