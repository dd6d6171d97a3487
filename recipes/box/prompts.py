"""Beginnings for perch to go on with, so that drafters are trained on all kinds of its answers.

python -m recipes.box.prompts --data DIR --work DIR --out FILE.jsonl

Each is the beginning of a document that the models were trained on: by turns a text up to some word, a conversation up
to where the assistant has the word, and a text that a user says, which is what questions look like that nobody trained
for. Among texts, and among conversations, sources have the shares of the last phase.
"""

import argparse
import json
import random
import re
from pathlib import Path

from recipes.box import corpus, mixture
from recipes.box.chat import ASSISTANT, END, USER

_MOST_CHARACTERS = 2000
"""About half of the context."""
_WORD = re.compile(r"\S+")


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="recipes.box.prompts", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="where the packs are")
    parser.add_argument("--work", type=Path, required=True, help="where they are unpacked to")
    parser.add_argument("--out", type=Path, required=True, help="file that is written")
    parser.add_argument("--count", type=int, default=32_000, help="of prompts")
    options = parser.parse_args()
    raw = options.work / "raw"
    corpus.unpack(options.data, raw)
    sources = mixture.mixed_sources(raw) + mixture.book_sources(raw)
    with options.out.open("w", encoding="utf-8") as file:
        for prompt in draw_prompts(sources, options.count, seed=0):
            file.write(json.dumps({"prompt": prompt}, ensure_ascii=False) + "\n")


def draw_prompts(sources: list[mixture.Source], count: int, seed: int) -> list[str]:
    rng = random.Random(seed)
    is_talk = [ASSISTANT in source.documents[0] for source in sources]
    shares = [source.final_weight * sum(map(len, source.documents)) for source in sources]
    of_texts = [0.0 if talk else share for talk, share in zip(is_talk, shares, strict=True)]
    of_talk = [share if talk else 0.0 for talk, share in zip(is_talk, shares, strict=True)]
    # A continuation of a text is ten times as long as an answer.
    kinds = ((of_texts, _beginning_of_text), *[(of_talk, _beginning_of_talk), (of_texts, _said)] * 2)
    prompts: list[str] = []
    while len(prompts) < count:
        weights, cut = kinds[len(prompts) % len(kinds)]
        [source] = rng.choices(sources, weights)
        prompt = cut(rng.choice(source.documents)[:_MOST_CHARACTERS], rng)
        if prompt:
            prompts.append(prompt)
    return prompts


def _beginning_of_text(document: str, rng: random.Random) -> str:
    ends = [match.end() for match in _WORD.finditer(document)]
    # As many short ones as long ones.
    return document[: ends[min(len(ends), int(2 ** rng.uniform(1, 8))) - 1]]


def _beginning_of_talk(document: str, rng: random.Random) -> str:
    """Return the beginning of a conversation; empty if none is short enough."""
    ends = [match.end() for match in re.finditer(re.escape(ASSISTANT), document)]
    return document[: rng.choice(ends)] if ends else ""


def _said(document: str, rng: random.Random) -> str:
    return f"{USER}{_beginning_of_text(document, rng)}{END}{ASSISTANT}"


if __name__ == "__main__":
    main()
