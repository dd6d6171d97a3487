"""Questions and the one answer to each of them, computed offline before the service is started."""

import random
from dataclasses import dataclass
from typing import Any

from archerfish import LLM, SamplingParams
from archerfish.request import Structured

NUM_TEXTS = 48
NUM_CHATS = 24
NUM_FORMS = 12
_OPENINGS = ("Once upon a time", "April is the", "The fox", "Lily went to the park and", "A river is", "Two and two")
_REGEX = "[a-z]{{{0}}} [a-z]{{{0}}}"


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked, in the words of the completions or of the chat endpoint, and the text that answers it."""

    body: dict[str, Any]
    answer: str

    @property
    def is_chat(self) -> bool:
        return "messages" in self.body

    @property
    def is_bound(self) -> bool:
        """Whether the answer has a form."""
        return "response_format" in self.body


@dataclass(frozen=True, slots=True)
class Expected:
    questions: tuple[Question, ...]
    embeddings: tuple[tuple[str, list[float]], ...]


def compute(seed: int = 0) -> Expected:
    """Questions of all kinds, greedy and seeded, answered by the offline engine."""
    rng = random.Random(seed)
    with LLM(threads=1, max_num_seqs=16) as llm:
        questions = [*_texts(llm, rng), *_chats(llm, rng), *_forms(llm)]
        texts = [f"{opening} {number}" for number, opening in enumerate(_OPENINGS)]
        vectors = [one.outputs.embedding for one in llm.embed(texts, progress=False)]
        embeddings = tuple(zip(texts, vectors, strict=True))
    return Expected(tuple(questions), embeddings)


def _choices(rng: random.Random) -> dict[str, Any]:
    """How an answer is drawn: greedily, or with a seed."""
    length = {"max_tokens": rng.randrange(1, 40)}
    if rng.random() < 0.5:
        return {**length, "temperature": 0.0}
    return {**length, "temperature": 0.9, "top_p": 0.95, "seed": rng.randrange(1000)}


def _texts(llm: LLM, rng: random.Random) -> list[Question]:
    prompts = [f"{rng.choice(_OPENINGS)} {number}" + " and again" * rng.randrange(30) for number in range(NUM_TEXTS)]
    chosen = [{**_choices(rng), "ignore_eos": True} for _ in prompts]
    outputs = llm.generate(prompts, [SamplingParams(**one) for one in chosen], progress=False)
    return [
        Question({"prompt": prompt, **one}, output.outputs[0].text)
        for prompt, one, output in zip(prompts, chosen, outputs, strict=True)
    ]


def _chats(llm: LLM, rng: random.Random) -> list[Question]:
    chats = [[{"role": "user", "content": f"{rng.choice(_OPENINGS)} {number}?"}] for number in range(NUM_CHATS)]
    chosen = [_choices(rng) for _ in chats]
    outputs = llm.chat(chats, [SamplingParams(**one) for one in chosen], progress=False)
    return [
        Question({"messages": chat, **one}, output.outputs[0].text)
        for chat, one, output in zip(chats, chosen, outputs, strict=True)
    ]


def _forms(llm: LLM) -> list[Question]:
    greedy: dict[str, Any] = {"temperature": 0.0, "max_tokens": 30}
    forms = [_REGEX.format(number + 1) for number in range(NUM_FORMS)]
    params = [SamplingParams(structured=Structured(regex=form), **greedy) for form in forms]
    outputs = llm.generate(["A word: "] * NUM_FORMS, params, progress=False)
    return [
        Question(
            {"prompt": "A word: ", **greedy, "response_format": {"type": "regex", "regex": form}},
            output.outputs[0].text,
        )
        for form, output in zip(forms, outputs, strict=True)
    ]
