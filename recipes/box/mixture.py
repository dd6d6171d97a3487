"""Which documents the models learn from, how often each source is seen, and what the last phase leaves out."""

import random
import re
from dataclasses import dataclass
from pathlib import Path

from recipes.box import corpus, tasks


@dataclass(frozen=True)
class Source:
    """Documents of one kind."""

    name: str
    documents: list[str]
    weight: float
    """How often it is seen for each time the encyclopedia is, in the main phase."""
    final_weight: float
    """The same in the last phase."""


def mixed_sources(raw: Path, seed: int = 0) -> list[Source]:
    """Everything but the books."""
    wiki = corpus.text_documents(raw / "simplewiki.txt")
    # One sample breaks paragraphs with one line, the other with two; the models should meet one way.
    stories = [re.sub(r" *\n+", "\n\n", story) for story in corpus.text_documents(raw / "tinystories_sample_b.txt")]
    stories += corpus.stories_by_line(raw / "tinystories_sample_a.txt")
    fairy_tales = [f"{one['title']}\n{one['text']}" for one in corpus.json_lines(raw / "fairytale_stories_train.jsonl")]
    rng = random.Random(seed)
    some = rng.sample(wiki, 20_000)
    return [
        Source("simplewiki", wiki, 1.0, 1.0),
        Source("stories", stories, 1.5, 2.0),
        Source("storybook", corpus.text_documents(raw / "african_storybook_en.txt"), 2.0, 3.0),
        Source("fairytales", fairy_tales, 2.0, 2.0),
        Source("tools", corpus.tool_dialogues(raw / "sgd_train.jsonl"), 0.6, 0.4),
        Source("orders", corpus.tool_dialogues(raw / "taskmaster4.jsonl"), 0.6, 0.4),
        Source("small talk", corpus.small_talk(raw / "self_dialogue.jsonl"), 0.6, 0.3),
        Source("word problems", corpus.word_problems(raw / "gsm8k_train.jsonl"), 1.0, 0.5),
        Source("quoting", list(tasks.quoting(raw / "fairytaleqa_train.jsonl")), 2.0, 3.0),
        Source("what is", list(tasks.first_sentences(wiki, seed)), 0.5, 1.0),
        Source("passages", list(tasks.about_passages(some, seed)), 0.7, 1.0),
        Source("renamings", list(tasks.renamings([*stories, *some], seed)), 0.7, 1.0),
        Source("greetings", tasks.greetings(200), 1.0, 2.0),
    ]


def book_sources(raw: Path) -> list[Source]:
    return [Source("books", corpus.text_documents(raw / "gutenberg_children.txt"), 1.0, 0.35)]
