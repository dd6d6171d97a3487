"""The mixture of documents to train on: how often each source is seen, and what the last phase leaves out."""

import random
from dataclasses import dataclass
from pathlib import Path

from recipes.box import corpus, tasks

WELL_KNOWN_MENTIONS = 25
WAYS_TO_ASK = 4


@dataclass(frozen=True)
class Source:
    """Documents of one kind."""

    name: str
    documents: list[str]
    weight: float
    """How often it is seen in the main phase, relative to the encyclopedia."""
    final_weight: float
    """The same for the last phase."""


def mixed_sources(raw: Path, seed: int = 0) -> list[Source]:
    """Return all sources but the books."""
    wiki = corpus.text_documents(raw / "simplewiki.txt")
    stories = corpus.tiny_stories(raw / "tinystories_sample_b.txt", raw / "tinystories_sample_a.txt", seed)
    storybook = corpus.storybook(raw / "african_storybook_en.txt")
    tales = [f"{one['title']}\n{one['text']}" for one in corpus.json_lines(raw / "fairytale_stories_train.jsonl")]
    some = random.Random(seed).sample(wiki, 30_000)
    hello = tasks.greetings()
    topics = tasks.well_known(wiki, WELL_KNOWN_MENTIONS)
    # Phrased in several ways, so that the answer belongs to the topic and not to a phrase.
    known = [one for way in range(WAYS_TO_ASK) for one in tasks.first_sentences(topics, seed + way)]
    company = [*hello * 20, *known]

    def conversations(exchanges: list[tasks.Exchange], alone: float = 0.6) -> list[str]:
        return tasks.conversations(exchanges, seed, company, alone)

    return [
        Source("simplewiki", wiki, 1.0, 1.0),
        # There are few stories: seen too often they are learned by heart, and new ones read worse. After
        # about two times in the main phase, one, two and a half and six more were tried in a short last phase: two and
        # a half gave the best held-out text. In three minutes of one H200 this weight makes four.
        Source("stories", stories, 0.15, 0.4),
        Source("storybook", storybook, 1.0, 2.0),
        Source("fairytales", tales, 1.0, 1.5),
        Source("tools", corpus.tool_dialogues(raw / "sgd_train.jsonl"), 0.6, 0.5),
        Source("orders", corpus.tool_dialogues(raw / "taskmaster4.jsonl"), 0.6, 0.4),
        Source("small talk", corpus.small_talk(raw / "self_dialogue.jsonl"), 0.6, 0.2),
        Source("word problems", corpus.word_problems(raw / "gsm8k_train.jsonl"), 1.0, 0.5),
        Source("quoting", conversations(list(tasks.quoting(raw / "fairytaleqa_train.jsonl", seed)), 0.8), 1.0, 2.0),
        Source("deeds", conversations(list(tasks.deeds([*stories, *storybook, *tales, *some], seed))), 0.7, 1.5),
        Source("what is", conversations(list(tasks.first_sentences(wiki, seed)), 0.9), 0.5, 0.6),
        Source("well known", conversations(known), 1.5, 4.0),
        Source("passages", conversations(list(tasks.about_passages(some, seed)), 0.8), 0.5, 0.7),
        Source("renamings", conversations(list(tasks.renamings([*stories, *some], seed)), 0.9), 0.5, 0.7),
        Source("greetings", conversations(hello * 30, 0.5), 1.0, 4.0),
    ]


def book_sources(raw: Path, seed: int = 0) -> list[Source]:
    books = corpus.text_documents(raw / corpus.BOOKS_FILE)
    return [
        Source("books", books, 1.0, 0.5),
        Source("deeds in books", tasks.conversations(tasks.deeds(books, seed), seed), 0.5, 1.0),
    ]
