"""Measures how well a trained model does two held-out tasks with the engine: quoting a passage, calling tools.

python -m recipes.box.skills --model DIR --data DIR --out FILE.json

The scores are written under the name of the model's directory; those of other models in the file are retained.
"""

import argparse
import json
import re
import string
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from archerfish import LLM, RequestOutput, SamplingParams
from recipes.box.chat import ASSISTANT, END, TOOL_CALL, write_conversation
from recipes.box.corpus import json_lines, tool_signatures, tools_of
from recipes.box.tasks import quoting_prompt

QUESTIONS = "fairytaleqa_val.jsonl"
DIALOGUES = "sgd_test_300.jsonl"
ANSWER_TOKENS = 64
"""Most tokens of an answer; the longest reference has 48."""
CALL_TOKENS = 128
"""Most tokens of a call; the longest reference has 77."""

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)

Scores = dict[str, Any]
Message = dict[str, Any]
Tools = dict[str, Sequence[str]]


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="recipes.box.skills", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--model", type=Path, required=True, help="directory of the exported model")
    parser.add_argument("--data", type=Path, required=True, help=f"directory with {QUESTIONS} and {DIALOGUES}")
    parser.add_argument("--out", type=Path, required=True, help="file the scores are added to")
    parser.add_argument("--limit", type=int, help="use only the first so many questions and calls")
    options = parser.parse_args()
    with LLM(options.model) as llm:
        scores = skills(llm, options.data, options.limit)
    known = json.loads(options.out.read_text()) if options.out.exists() else {}
    known[options.model.resolve().name] = scores
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(known, indent=2) + "\n")


def skills(llm: LLM, data: Path, limit: int | None = None) -> Scores:
    """Score both tasks, from the directory with the held-out files."""
    scores = {}
    for name, measure, file in (("quoting", quoting_scores, QUESTIONS), ("tools", tool_scores, DIALOGUES)):
        scores[name] = measure(llm, data / file, limit)
        print(name, json.dumps(scores[name]), flush=True)
    return scores


# -- quoting ----------------------------------------------------------------------------------------------------------


def quoting_scores(llm: LLM, path: Path, limit: int | None = None) -> Scores:
    """Score questions about a passage by exact match and F1 as SQuAD counts them, against the best of the references.

    Scores are over all questions, and over the literal ones: those with a reference that is part of the passage word
    for word, which is all that the models are taught. `quoted` is the share of answers that are part of their passage.
    A question whose prompt leaves no space for the answer counts, and scores 0.
    """
    questions = list(json_lines(path))[:limit]
    print(f"quoting: {len(questions)} questions", flush=True)
    answers = _answers(llm, [quoting_prompt(question) for question in questions])
    answered = list(zip(questions, answers, strict=True))
    literal = [(question, answer) for question, answer in answered if _is_literal(question)]
    return {
        "all": _matches(answered),
        "literal": _matches(literal),
        "quoted": _share(
            answer is not None and is_quoted(answer, question["context"]) for question, answer in answered
        ),
        "did_not_fit": answers.count(None),
    }


def exact_match(answer: str, references: Sequence[str]) -> float:
    return float(any(_normalized(answer) == _normalized(reference) for reference in references))


def f1(answer: str, references: Sequence[str]) -> float:
    """Return the overlap of words, the best over the references."""
    return max(_overlap(_normalized(answer).split(), _normalized(reference).split()) for reference in references)


def is_quoted(answer: str, passage: str) -> bool:
    """Return whether the passage has these words in this order; capitals do not matter, punctuation does."""
    words = re.escape(answer.strip().lower())
    return bool(words) and re.search(rf"(?<!\w){words}(?!\w)", passage.lower()) is not None


def _answers(llm: LLM, prompts: Sequence[str]) -> list[str | None]:
    """Return the answer to each prompt as the user's only message; None if there is no space for an answer."""
    conversations = [[{"role": "user", "content": prompt}] for prompt in prompts]
    texts = [llm.assembly.processor.chat_text(conversation) for conversation in conversations]
    fits = [_fits(llm, text, ANSWER_TOKENS) for text in texts]
    fitting = [conversation for conversation, fit in zip(conversations, fits, strict=True) if fit]
    params = SamplingParams(temperature=0, max_tokens=ANSWER_TOKENS)
    answers = iter(answer_texts(llm.chat(fitting, params)) if fitting else [])
    return [next(answers) if fit else None for fit in fits]


def _is_literal(question: dict[str, Any]) -> bool:
    return any(is_quoted(reference, question["context"]) for reference in question["answers"])


def _matches(answered: Sequence[tuple[dict[str, Any], str | None]]) -> Scores:
    return {
        "questions": len(answered),
        "exact_match": _share(
            exact_match(answer, question["answers"]) if answer is not None else 0 for question, answer in answered
        ),
        "f1": _share(f1(answer, question["answers"]) if answer is not None else 0 for question, answer in answered),
    }


def _normalized(text: str) -> str:
    """Normalize as SQuAD does: small letters, no punctuation, no articles, single spaces."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def _overlap(words: list[str], wanted: list[str]) -> float:
    if not words or not wanted:
        return float(words == wanted)
    common = sum((Counter(words) & Counter(wanted)).values())
    return 2 * common / (len(words) + len(wanted))


# -- tools ------------------------------------------------------------------------------------------------------------


def tool_scores(llm: LLM, path: Path, limit: int | None = None) -> Scores:
    """Score the calls of functions in dialogues, each read up to a call of the reference.

    Scores are shares of all calls, each stricter than the one before: a well-formed call (the token that begins one,
    then JSON with a name and arguments, and nothing else), which also names the right function, and whose arguments are
    also exactly those of the reference. Calls made where none is due are not counted.

    Where a conversation and CALL_TOKENS do not fit in the context, its oldest turns are left out, but never the tools;
    `shortened` counts these. A call for which the last turn alone does not fit counts as not well-formed.
    """
    call_sites = _call_sites(path)[:limit]
    print(f"tools: {len(call_sites)} calls", flush=True)
    histories = [_latest(call_site, lambda text: _fits(llm, text, CALL_TOKENS)) for call_site in call_sites]
    prompts = [
        _prompt(turns, call_site.tools)
        for turns, call_site in zip(histories, call_sites, strict=True)
        if turns is not None
    ]
    params = SamplingParams(temperature=0, max_tokens=CALL_TOKENS, stop=(END,), skip_special_tokens=False)
    answers = iter(answer_texts(llm.generate(prompts, params)) if prompts else [])
    calls = [read_call(next(answers)) if turns is not None else None for turns in histories]
    graded = [_grade(call, call_site.call) for call, call_site in zip(calls, call_sites, strict=True)]
    return {
        "calls": len(call_sites),
        "well_formed": _share(grade >= 1 for grade in graded),
        "right_function": _share(grade >= 2 for grade in graded),
        "right_arguments": _share(grade >= 3 for grade in graded),
        "shortened": sum(
            turns is not None and len(turns) < len(call_site.turns)
            for turns, call_site in zip(histories, call_sites, strict=True)
        ),
        "did_not_fit": histories.count(None),
    }


def read_call(text: str) -> dict[str, Any] | None:
    """Return the call that an answer makes; None unless it is a whole one and nothing else."""
    if not text.startswith(TOOL_CALL):
        return None
    try:
        call = json.loads(text.removeprefix(TOOL_CALL))
    except ValueError:
        return None
    whole = isinstance(call, dict) and isinstance(call.get("name"), str) and isinstance(call.get("arguments"), dict)
    return call if whole else None


class _CallSite(NamedTuple):
    """A position in a dialogue that calls a function."""

    turns: list[Message]
    """The dialogue so far."""
    tools: Tools
    call: dict[str, Any]


def _call_sites(path: Path) -> list[_CallSite]:
    """Return all calls of a file; tools are those that its dialogues call, as for the models' training."""
    dialogues = list(json_lines(path))
    signatures = tool_signatures(dialogues)
    return [
        _CallSite(dialogue["messages"][:number], dict(tools_of(dialogue, signatures)), message["tool_call"])
        for dialogue in dialogues
        for number, message in enumerate(dialogue["messages"])
        if message.get("tool_call")
    ]


def _latest(call_site: _CallSite, fits: Callable[[str], bool]) -> list[Message] | None:
    """Return as many of the latest turns as fit next to the tools; None if the last alone does not."""
    for first in range(len(call_site.turns)):
        if fits(_prompt(call_site.turns[first:], call_site.tools)):
            return call_site.turns[first:]
    return None


def _prompt(turns: Sequence[Message], tools: Tools) -> str:
    return write_conversation(turns, tools) + ASSISTANT


def _grade(call: dict[str, Any] | None, wanted: dict[str, Any]) -> int:
    """Return 0 for no call, 1 well-formed, 2 the right function, 3 and exactly its arguments."""
    if call is None:
        return 0
    if call["name"] != wanted["name"]:
        return 1
    return 3 if call["arguments"] == wanted["arguments"] else 2


# -- both -------------------------------------------------------------------------------------------------------------


def _fits(llm: LLM, text: str, num_new: int) -> bool:
    """Return whether prompt and answer together fit in the context."""
    num_tokens = len(llm.assembly.processor.token_ids(text, add_special_tokens=False))
    return num_tokens + num_new <= llm.assembly.config.max_model_len


def answer_texts(outputs: Iterable[RequestOutput]) -> list[str]:
    """Return answers as text. A failed request is not a wrong answer: it ends the measurement."""
    answers = [output.outputs[0] for output in outputs]
    for answer in answers:
        if answer.error is not None:
            raise RuntimeError(f"the engine could not answer: {answer.error}")
    return [answer.text for answer in answers]


def _share(values: Iterable[float]) -> float:
    listed = list(values)
    return round(sum(listed) / len(listed), 4) if listed else 0.0


if __name__ == "__main__":
    main()
