"""How well a trained model does two held-out tasks, asked through the engine: quoting a passage, calling tools.

python -m recipes.box.skills --model DIR --data DIR --out FILE.json

The scores are written under the name of the model's directory; those of other models in the file are kept.
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
"""Room for an answer; the longest reference has 48."""
CALL_TOKENS = 128
"""Room for a call; the longest reference has 77."""

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
    parser.add_argument("--limit", type=int, help="ask only the first so many questions and calls")
    options = parser.parse_args()
    with LLM(options.model) as llm:
        scores = skills(llm, options.data, options.limit)
    known = json.loads(options.out.read_text()) if options.out.exists() else {}
    known[options.model.resolve().name] = scores
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(known, indent=2) + "\n")


def skills(llm: LLM, data: Path, limit: int | None = None) -> Scores:
    """Both tasks, from the directory with the held-out files."""
    scores = {}
    for name, measure, file in (("quoting", quoting_scores, QUESTIONS), ("tools", tool_scores, DIALOGUES)):
        scores[name] = measure(llm, data / file, limit)
        print(name, json.dumps(scores[name]), flush=True)
    return scores


# -- quoting ----------------------------------------------------------------------------------------------------------


def quoting_scores(llm: LLM, path: Path, limit: int | None = None) -> Scores:
    """Questions about a passage: exact match and F1 as SQuAD counts them, against the best of the references.

    Over all questions, and over the literal ones: those with a reference that stands in the passage word for word,
    which is all that the models are taught. `quoted` is the share of answers that stand in their passage themselves.
    A question whose prompt leaves no room for the answer is not asked, is counted, and scores 0.
    """
    questions = list(json_lines(path))[:limit]
    print(f"quoting: {len(questions)} questions", flush=True)
    answers = _answers(llm, [quoting_prompt(one) for one in questions])
    asked = list(zip(questions, answers, strict=True))
    literal = [(one, answer) for one, answer in asked if _is_literal(one)]
    return {
        "all": _matches(asked),
        "literal": _matches(literal),
        "quoted": _share(answer is not None and stands_in(answer, one["context"]) for one, answer in asked),
        "not_asked": answers.count(None),
    }


def exact_match(answer: str, references: Sequence[str]) -> float:
    return float(any(_normalized(answer) == _normalized(reference) for reference in references))


def f1(answer: str, references: Sequence[str]) -> float:
    """Overlap of words, the best over the references."""
    return max(_overlap(_normalized(answer).split(), _normalized(reference).split()) for reference in references)


def stands_in(answer: str, passage: str) -> bool:
    """Whole words, one after the other; capitals do not matter, punctuation does."""
    words = re.escape(answer.strip().lower())
    return bool(words) and re.search(rf"(?<!\w){words}(?!\w)", passage.lower()) is not None


def _answers(llm: LLM, prompts: Sequence[str]) -> list[str | None]:
    """What the model says to each as the user's only message; None where there is no room for an answer."""
    conversations = [[{"role": "user", "content": prompt}] for prompt in prompts]
    texts = [llm.assembly.processor.chat_text(conversation) for conversation in conversations]
    fits = [_fits(llm, text, ANSWER_TOKENS) for text in texts]
    asked = [conversation for conversation, fit in zip(conversations, fits, strict=True) if fit]
    params = SamplingParams(temperature=0, max_tokens=ANSWER_TOKENS)
    said = iter(answer_texts(llm.chat(asked, params)) if asked else [])
    return [next(said) if fit else None for fit in fits]


def _is_literal(one: dict[str, Any]) -> bool:
    return any(stands_in(reference, one["context"]) for reference in one["answers"])


def _matches(asked: Sequence[tuple[dict[str, Any], str | None]]) -> Scores:
    return {
        "questions": len(asked),
        "exact_match": _share(
            exact_match(answer, one["answers"]) if answer is not None else 0 for one, answer in asked
        ),
        "f1": _share(f1(answer, one["answers"]) if answer is not None else 0 for one, answer in asked),
    }


def _normalized(text: str) -> str:
    """SQuAD's: small letters, no punctuation, no articles, single spaces."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def _overlap(found: list[str], wanted: list[str]) -> float:
    if not found or not wanted:
        return float(found == wanted)
    common = sum((Counter(found) & Counter(wanted)).values())
    return 2 * common / (len(found) + len(wanted))


# -- tools ------------------------------------------------------------------------------------------------------------


def tool_scores(llm: LLM, path: Path, limit: int | None = None) -> Scores:
    """Dialogues up to each place where the reference calls a function, for the model to go on from.

    Shares of all calls, each harder than the one before: a well-formed call (the token that begins one, then JSON with
    a name and arguments, and nothing else), which also names the right function, and whose arguments are also exactly
    those of the reference. Calls made where none is due are not looked for.

    Where a conversation and CALL_TOKENS do not fit in the context, its oldest turns are left out, but never the tools;
    `shortened` counts these. A call for which the last turn alone does not fit is not asked, and is not well-formed.
    """
    places = _places(path)[:limit]
    print(f"tools: {len(places)} calls", flush=True)
    kept = [_latest(place, lambda text: _fits(llm, text, CALL_TOKENS)) for place in places]
    prompts = [_prompt(turns, place.tools) for turns, place in zip(kept, places, strict=True) if turns is not None]
    params = SamplingParams(temperature=0, max_tokens=CALL_TOKENS, stop=(END,), skip_special_tokens=False)
    said = iter(answer_texts(llm.generate(prompts, params)) if prompts else [])
    made = [read_call(next(said)) if turns is not None else None for turns in kept]
    graded = [_grade(call, place.call) for call, place in zip(made, places, strict=True)]
    return {
        "calls": len(places),
        "well_formed": _share(grade >= 1 for grade in graded),
        "right_function": _share(grade >= 2 for grade in graded),
        "right_arguments": _share(grade >= 3 for grade in graded),
        "shortened": sum(
            turns is not None and len(turns) < len(place.turns) for turns, place in zip(kept, places, strict=True)
        ),
        "not_asked": kept.count(None),
    }


def read_call(text: str) -> dict[str, Any] | None:
    """The call that an answer makes; None unless it is a whole one and nothing else."""
    if not text.startswith(TOOL_CALL):
        return None
    try:
        call = json.loads(text.removeprefix(TOOL_CALL))
    except ValueError:
        return None
    whole = isinstance(call, dict) and isinstance(call.get("name"), str) and isinstance(call.get("arguments"), dict)
    return call if whole else None


class _Place(NamedTuple):
    """Where a dialogue calls a function."""

    turns: list[Message]
    """The dialogue so far."""
    tools: Tools
    call: dict[str, Any]


def _places(path: Path) -> list[_Place]:
    """Tools are what the file's dialogues call, as for the models' training."""
    dialogues = list(json_lines(path))
    signatures = tool_signatures(dialogues)
    return [
        _Place(one["messages"][:number], dict(tools_of(one, signatures)), message["tool_call"])
        for one in dialogues
        for number, message in enumerate(one["messages"])
        if message.get("tool_call")
    ]


def _latest(place: _Place, fits: Callable[[str], bool]) -> list[Message] | None:
    """As many of the latest turns as fit beside the tools; None if the last alone does not."""
    for first in range(len(place.turns)):
        if fits(_prompt(place.turns[first:], place.tools)):
            return place.turns[first:]
    return None


def _prompt(turns: Sequence[Message], tools: Tools) -> str:
    return write_conversation(turns, tools) + ASSISTANT


def _grade(made: dict[str, Any] | None, wanted: dict[str, Any]) -> int:
    """0 no call, 1 well-formed, 2 the right function, 3 and exactly its arguments."""
    if made is None:
        return 0
    if made["name"] != wanted["name"]:
        return 1
    return 3 if made["arguments"] == wanted["arguments"] else 2


# -- both -------------------------------------------------------------------------------------------------------------


def _fits(llm: LLM, text: str, num_new: int) -> bool:
    """Prompt and answer together."""
    num_tokens = len(llm.assembly.processor.token_ids(text, add_special_tokens=False))
    return num_tokens + num_new <= llm.assembly.config.max_model_len


def answer_texts(outputs: Iterable[RequestOutput]) -> list[str]:
    """Answers as text. One that failed is no wrong answer: it ends the measurement."""
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
