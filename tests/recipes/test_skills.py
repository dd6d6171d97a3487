"""The prompts that the models get from the skills: what counts as right, and that every question is counted."""

import json
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from archerfish import LLM, SamplingParams
from recipes.box import samples, skills
from recipes.box.chat import ASSISTANT, END, TOOL_CALL, USER, write_call
from recipes.box.tokenizer import save_tokenizer, train_tokenizer
from tests.checkpoints import CONFIG

PASSAGE = "Once there lived an old king. He gave a golden ring to the youngest daughter."
QUESTIONS = [
    {"context": PASSAGE, "question": "Who gave the ring?", "answers": ["an old king", "the father"]},
    {"context": PASSAGE, "question": "What did he give?", "answers": ["A golden ring."]},
    {"context": PASSAGE, "question": "How did she feel?", "answers": ["happy", "glad"]},
]
CALL = {"name": "ReserveTable", "arguments": {"city": "Oslo", "seats": "2"}}
SEARCH = {"name": "FindTable", "arguments": {"city": "Oslo"}}
DIALOGUE: dict[str, Any] = {
    "services": ["Restaurants"],
    "messages": [
        {"role": "user", "content": "Is there a table for two in Oslo?"},
        {"role": "assistant", "tool_call": SEARCH},
        {"role": "tool", "content": [{"name": "Smia"}]},
        {"role": "assistant", "content": "Smia has one. Shall I reserve it?"},
        {"role": "user", "content": "Yes, please."},
        {"role": "assistant", "tool_call": CALL},
    ],
}


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    """Random weights behind the models' own kind of tokenizer and their template."""
    directory = tmp_path_factory.mktemp("model")
    tokenizer = train_tokenizer([PASSAGE, json.dumps(DIALOGUE)])
    save_tokenizer(tokenizer, directory)
    config = {**CONFIG, "vocab_size": tokenizer.get_vocab_size(), "max_position_embeddings": 512}
    (directory / "config.json").write_text(json.dumps(config))
    with LLM(directory, load_format="dummy", kv_cache_memory_bytes=2_000_000) as llm:
        yield llm


def lines(path: Path, values: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(value) + "\n" for value in values))
    return path


Script = Callable[[LLM, list[str]], list[Any]]


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Script:
    """Script the model's answers; returns a list that collects the prompts."""

    def script(llm: LLM, answers: list[str]) -> list[Any]:
        prompts_sent: list[Any] = []

        def say(prompts: list[Any], params: SamplingParams) -> list[Any]:
            assert params.is_greedy
            prompts_sent.extend(prompts)
            said = [SimpleNamespace(text=answer, error=None) for answer in answers]
            return [SimpleNamespace(outputs=[one]) for one, _ in zip(said, prompts, strict=True)]

        monkeypatch.setattr(llm, "chat", say)
        monkeypatch.setattr(llm, "generate", say)
        return prompts_sent

    return script


def test_answers_are_compared_as_squad_does() -> None:
    assert skills.exact_match("The  old, king!", ["queen", "old king"]) == 1
    assert skills.exact_match("old kings", ["old king"]) == 0
    assert skills.f1("a very old king", ["old king", "queen"]) == pytest.approx(0.8)
    assert skills.f1("king king", ["king"]) == pytest.approx(2 / 3)
    assert skills.f1("", ["king"]) == 0 and skills.f1("the", ["a"]) == 1


def test_a_quote_is_whole_words() -> None:
    assert skills.is_quoted(" he gave a golden ring ", PASSAGE)
    assert skills.is_quoted("ring to", PASSAGE) and skills.is_quoted("daughter.", PASSAGE)
    assert not skills.is_quoted("ring to the young", PASSAGE)
    assert not skills.is_quoted("his ring", PASSAGE) and not skills.is_quoted(" ", PASSAGE)


def test_quoting_is_scored_over_all_and_over_literal_questions(llm: LLM, scripted: Script, tmp_path: Path) -> None:
    prompts_sent = scripted(llm, ["An old king", "golden ring to the youngest", "sad"])
    scores = skills.quoting_scores(llm, lines(tmp_path / "questions", QUESTIONS))
    assert prompts_sent[0] == [{"role": "user", "content": f"{PASSAGE}\n\nQuestion: Who gave the ring?"}]
    # "A golden ring." has a full stop that the passage has not: it is no literal answer.
    assert scores["literal"] == {"questions": 1, "exact_match": 1.0, "f1": 1.0}
    assert scores["all"] == {"questions": 3, "exact_match": 0.3333, "f1": round((1 + 2 / 3) / 3, 4)}
    assert scores["quoted"] == 0.6667 and scores["did_not_fit"] == 0


def test_a_question_that_does_not_fit_is_counted_and_wrong(llm: LLM, scripted: Script, tmp_path: Path) -> None:
    long = {**QUESTIONS[0], "context": PASSAGE * 100}
    prompts_sent = scripted(llm, ["an old king"])
    scores = skills.quoting_scores(llm, lines(tmp_path / "questions", [long, QUESTIONS[0]]))
    assert len(prompts_sent) == 1
    assert scores["did_not_fit"] == 1 and scores["quoted"] == 0.5
    assert scores["all"] == {"questions": 2, "exact_match": 0.5, "f1": 0.5}


def test_calls_are_read_only_if_whole() -> None:
    good = TOOL_CALL + write_call(CALL)
    assert skills.read_call(good) == CALL
    for bad in (write_call(CALL), good[:-1], good + " Done.", TOOL_CALL, TOOL_CALL + "[]", TOOL_CALL + '{"name": "x"}'):
        assert skills.read_call(bad) is None


@pytest.mark.parametrize(
    ("second", "shares"),
    [
        (TOOL_CALL + write_call(CALL), (1.0, 1.0, 1.0)),
        (TOOL_CALL + write_call({**CALL, "arguments": {"city": "Oslo"}}), (1.0, 1.0, 0.5)),
        (TOOL_CALL + write_call(SEARCH), (1.0, 0.5, 0.5)),
        ("Your table is reserved.", (0.5, 0.5, 0.5)),
    ],
)
def test_calls_are_graded(
    llm: LLM, scripted: Script, tmp_path: Path, second: str, shares: tuple[float, float, float]
) -> None:
    prompts_sent = scripted(llm, [TOOL_CALL + write_call(SEARCH), second])
    scores = skills.tool_scores(llm, lines(tmp_path / "dialogues", [DIALOGUE]))
    assert (scores["well_formed"], scores["right_function"], scores["right_arguments"]) == shares
    assert scores["calls"] == 2 and scores["shortened"] == 0
    tools = "<|system|>Tools: FindTable(city), ReserveTable(city, seats)<|end|>"
    assert prompts_sent[0] == f"{tools}<|user|>Is there a table for two in Oslo?<|end|><|assistant|>"
    assert prompts_sent[1].endswith("<|user|>Yes, please.<|end|><|assistant|>")


def test_old_turns_give_way_but_never_the_tools(llm: LLM, scripted: Script, tmp_path: Path) -> None:
    turns = [*DIALOGUE["messages"][:-1], {"role": "assistant", "tool_call": CALL}]
    chatter = [{"role": "user", "content": "Well, well. " * 80}]
    prompts_sent = scripted(llm, ["", ""])
    dialogue = {**DIALOGUE, "messages": [*turns[:4], *chatter, *turns[4:]]}
    scores = skills.tool_scores(llm, lines(tmp_path / "dialogues", [dialogue]))
    assert scores["shortened"] == 1 and scores["did_not_fit"] == 0
    assert prompts_sent[1].startswith("<|system|>Tools: ") and prompts_sent[1].endswith(
        "<|user|>Yes, please.<|end|><|assistant|>"
    )
    assert "Well" not in prompts_sent[1]


@pytest.mark.full
def test_the_engine_is_prompted_in_special_tokens_and_gives_the_same_twice(llm: LLM, tmp_path: Path) -> None:
    lines(tmp_path / skills.QUESTIONS, QUESTIONS)
    lines(tmp_path / skills.DIALOGUES, [DIALOGUE])
    first = skills.skills(llm, tmp_path)
    assert first == skills.skills(llm, tmp_path)
    assert first["quoting"]["all"]["questions"] == 3 and first["tools"]["calls"] == 2
    assert skills.skills(llm, tmp_path, limit=1)["tools"]["calls"] == 1
    [output] = llm.generate(f"{USER}Yes", SamplingParams(max_tokens=1))
    assert output.prompt_token_ids[0] == 3  # One token, not the letters of its name.


@pytest.mark.full
def test_samples_are_texts_and_conversations_greedy_and_drawn(llm: LLM) -> None:
    written = samples.write_samples(llm, "perch")
    prompts = [*samples.BEGINNINGS, *(f"{USER}{message}{END}{ASSISTANT}" for message in samples.MESSAGES)]
    assert [one["prompt"] for one in written] == prompts * 2
    assert [one["temperature"] for one in written] == [0] * len(prompts) + [0.8] * len(prompts)
    assert {(one["model"], one["seed"]) for one in written} == {("perch", 0)}
    assert written == samples.write_samples(llm, "perch")
    assert len(samples.show_samples(written)) == len(prompts)


def test_samples_of_other_models_are_retained(llm: LLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "work" / "samples.json"
    monkeypatch.setattr(samples, "LLM", lambda _: nullcontext(llm))
    for name in ("perch", "minnow", "perch"):
        monkeypatch.setattr("sys.argv", ["samples", "--model", str(tmp_path / name), "--out", str(out)])
        samples.main()
    written = json.loads(out.read_text())
    num_each = 2 * (len(samples.BEGINNINGS) + len(samples.MESSAGES))
    assert [one["model"] for one in written] == ["minnow"] * num_each + ["perch"] * num_each
