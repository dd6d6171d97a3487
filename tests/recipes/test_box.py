"""The recipe of the models in the box: it trains on what serving will write, and its measures hold."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers

from archerfish.tokenizer.chat import ChatTemplate
from recipes.box import distill, evaluate
from recipes.box import train as training
from recipes.box.chat import SPECIAL_TOKENS, TEMPLATE, write_conversation
from recipes.box.model import load_parameters, logits_of_rows, new_model, sample
from recipes.box.optimizer import fall, orthogonalized, rise, rise_and_fall
from recipes.box.pack import Packed
from recipes.box.tasks import about_passages, conversations, deeds, first_sentences, quoting, renamings, well_known


def served(messages: list[dict[str, Any]], **more: Any) -> str:
    special = {"eos_token": SPECIAL_TOKENS[1]}
    return ChatTemplate({"default": TEMPLATE}, special).render(messages, add_generation_prompt=False, **more)


def test_conversations_are_trained_as_they_will_be_served() -> None:
    call = {"name": "find", "arguments": {"city": "San José", "seats": "2"}}
    trained = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "A table, please"},
        {"role": "assistant", "tool_call": call},
        {"role": "tool", "content": '[{"name": "71 Saint Peter"}]'},
        {"role": "assistant", "content": "71 Saint Peter has one."},
    ]
    conversation = [
        {**message, "tool_calls": [{"type": "function", "function": message["tool_call"]}], "content": None}
        if "tool_call" in message
        else message
        for message in trained
    ]
    assert served(conversation) == write_conversation(trained)
    tools = [
        {"type": "function", "function": {"name": name, "parameters": {"properties": {a: {} for a in arguments}}}}
        for name, arguments in {"find": ["city", "seats"], "book": ["day"]}.items()
    ]
    expected = write_conversation(trained, {"find": ["city", "seats"], "book": ["day"]})
    assert served(conversation, tools=tools) == expected
    assert expected.startswith("<|system|>Tools: find(city, seats), book(day)<|end|>")


def test_tasks_answer_with_words_of_the_prompt() -> None:
    article = "Rome\nRome is the capital city of Italy in Europe. Many people visit it every single year. "
    article += "The Colosseum stands in the middle of the old town. Romulus founded it, as the legend says."
    [known] = first_sentences([article], 0)
    assert "Rome" in known.question and known.answer == "Rome is the capital city of Italy in Europe."
    [quoted] = about_passages([article], 0)
    assert quoted.answer in quoted.question
    story = "Once a boy named Tim had a kite. One day Tim lost it, and so Tim was sad. " * 3
    [renamed] = renamings([story], 0)
    assert (
        "Tim" in renamed.question
        and "Tim" not in renamed.answer
        and renamed.answer.count(". ") == story.count(". ") - 1
    )


def test_questions_about_deeds_are_answered_from_the_passage() -> None:
    questions = [
        pair for seed in range(8) for pair in deeds(["The fox ran into the wood. Anna found a red kite."], seed)
    ]
    assert {pair.answer for pair in questions} == {
        "The fox",
        "The fox ran into the wood.",
        "Anna",
        "Anna found a red kite.",
    }
    for pair in questions:
        assert pair.answer in pair.question
        assert any(
            question in pair.question
            for question in (
                "Who ran into the wood?",
                "Where did the fox run?",
                "Who found a red kite?",
                "What did Anna find?",
            )
        )


def test_passages_are_quizzed_whole_and_in_short(tmp_path: Path) -> None:
    sentences = [f"Here is sentence number {number}." for number in range(20)]
    one = {"context": " ".join(sentences), "question": "Which?", "answers": ["number 12"]}
    missing = {**one, "answers": ["number 77"]}
    (tmp_path / "q.jsonl").write_text("\n".join(json.dumps(line) for line in (one, missing)))
    whole, short = quoting(tmp_path / "q.jsonl", 0)
    assert whole.question.startswith(one["context"]) and whole.answer == short.answer == "number 12"
    assert sentences[12] in short.question and sentences[12 - 3] not in short.question


def test_well_known_topics_stand_in_other_articles() -> None:
    articles = [
        "Rome\nA city in Italy.",
        "Italy\nRome is in it, and so is New Town.",
        "New Town\nIn Italy.",
        "Odd\nThing.",
    ]
    assert [one.split("\n")[0] for one in well_known(articles, 2)] == ["Rome", "Italy", "New Town"]


def test_conversations_keep_every_exchange_and_some_have_company() -> None:
    article = "Rome\nRome is the capital city of Italy in Europe."
    exchanges = list(first_sentences([article] * 50, 0))
    written = conversations(exchanges, 0, company=exchanges, alone=0.5)
    turns = [one.count("<|assistant|>") for one in written]
    assert len(written) == 50 and turns.count(1) > 15 and max(turns) > 2
    assert all(one.endswith("<|end|>") for one in written)


def test_every_token_is_judged_exactly_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluate, "CONTEXT", 8)
    monkeypatch.setattr(evaluate, "STRIDE", 4)
    vocabulary = {SPECIAL_TOKENS[0]: 0, **{str(number): number for number in range(1, 60)}}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=SPECIAL_TOKENS[0]))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    for length in (1, 7, 8, 9, 12, 13, 33):
        document = " ".join(str(1 + place) for place in range(length))
        inputs, targets = evaluate._windows([document], tokenizer)
        judged = targets[targets != -100].tolist()
        assert judged == list(range(1, length + 1))
        # Each target is the token after its input.
        assert all(t == i + 1 for i, t in zip(inputs.flatten(), targets.flatten(), strict=True) if t != -100)


def test_sampling_with_a_cache_gives_what_whole_rows_give() -> None:
    model = new_model("minnow", "cpu").requires_grad_(False)
    prompts = torch.randint(8, 8000, (3, 5), generator=torch.Generator().manual_seed(0))
    rows = sample(model, prompts, 12, 0.0, "cpu", 0)
    assert torch.equal(rows[:, :5], prompts)
    assert torch.equal(logits_of_rows(model, rows[:, :-1]).argmax(-1)[:, 4:], rows[:, 5:])


def test_updates_are_orthogonal_and_the_rate_rises_and_falls() -> None:
    torch.manual_seed(0)
    for shape in ((2, 6, 10), (2, 10, 6)):
        values = torch.linalg.svdvals(orthogonalized(torch.randn(shape)))
        assert float(values.min()) > 0.5 and float(values.max()) < 1.3
    assert rise(0.0) < 0.01 and rise(0.5) == rise(1.0) == 1.0
    assert fall(0.02) == 0.98 and fall(0.5) == 0.5 and fall(1.0) == 0.01
    rates = [rise_and_fall(step / 1000) for step in range(1001)]
    top = rates.index(1.0)
    assert rates[:top] == sorted(rates[:top]) and rates[top:] == sorted(rates[top:], reverse=True)
    assert rates[500] == 1.0 and rates[-1] == 0.01


def packed(directory: Path) -> Packed:
    """Two sources of documents that count up from their first token."""
    directory.mkdir(exist_ok=True)
    for name, weight, first in (("a", 1.0, 100), ("b", 0.0, 3000)):
        documents = [[*range(first + number, first + number + 3 + number % 7), 0] for number in range(60)]
        np.array([token for document in documents for token in document], np.uint16).tofile(directory / f"{name}.bin")
        settings = {"weight": weight, "final_weight": 1 - weight}
        (directory / f"{name}.json").write_text(json.dumps(settings))
    return Packed(directory)


def test_rows_come_from_the_phase_s_sources_and_often_begin_with_a_document(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "CONTEXT", 15)
    rows = training.DataRows(packed(tmp_path), 256, "cpu")
    main, final = rows.next(final=False), rows.next(final=True)
    assert main.shape == (256, 16) and int(main.max()) < 3000 and int(final[final > 0].min()) >= 3000
    documents = packed(tmp_path).documents.tolist()
    beginnings = {tuple(packed(tmp_path).tokens[first : first + 3].tolist()) for first in documents}
    plain = sum(tuple(row[:3].tolist()) in beginnings for row in main)
    after_end = sum(int(row[0]) == 0 and tuple(row[1:4].tolist()) in beginnings for row in main)
    assert 0.3 < plain / 256 < 0.6 and 0.3 < after_end / 256 < 0.6
    rows.seek(7)
    again = rows.next(final=False)
    rows.seek(7)
    assert torch.equal(rows.next(final=False), again)


@pytest.mark.full
def test_training_resumes_as_planned_and_distillation_learns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "CONTEXT", 15)
    monkeypatch.setattr(distill, "_BATCHES_AT_ONCE", 1)
    monkeypatch.setattr(training, "_measure", lambda *_: 1.0)
    teacher, student = new_model("minnow", "cpu", seed=1).requires_grad_(False), new_model("minnow", "cpu")
    rows = distill.OwnRows(teacher, training.DataRows(packed(tmp_path / "packed"), 4, "cpu"), 1, "cpu")
    assert rows.num_own_tokens == 9 * 4 * 16
    loss = distill.imitation_loss(teacher)
    plan = training.TrainingPlan("small", tmp_path, 12.5, rise_and_fall, final=True)

    calls = 0

    def interrupted(model: Any, batch: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        calls += 1
        if calls == 8:
            raise KeyboardInterrupt
        return loss(model, batch)

    monkeypatch.setattr(training, "_CHECKPOINT_SECONDS", 0.0)
    with pytest.raises(KeyboardInterrupt):
        training.train(plan, student, rows, interrupted, lambda _: {})
    training.train(plan, student, rows, loss, lambda _: {"held": 1.0})
    log = [json.loads(line) for line in (tmp_path / "small.log.jsonl").read_text().splitlines()]
    assert log[0]["plan"]["num_steps"] == 12 and log[-1]["step"] == 12 and log[-1]["held_out"] == {"held": 1.0}
    steps = [entry["step"] for entry in log[1:]]
    assert steps == list(range(1, 13)), "every step once: the checkpoint was of step 7"
    assert log[-1]["loss"] < log[1]["loss"]
    reloaded = new_model("minnow", "cpu", seed=5)
    load_parameters(reloaded, tmp_path / "small.safetensors")
    assert torch.equal(reloaded.embedding.weight, student.embedding.weight)


def test_agreement_ends_where_the_continuation_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    written = torch.tensor([[5, 6, 7, 1, 9, 9], [5, 6, 7, 8, 9, 10]])
    monkeypatch.setattr(distill, "sample", lambda *_: written)
    drafted = torch.tensor([[0, 7, 1, 3, 3], [0, 7, 0, 9, 0]])  # After each token but the last.

    def logits(*_: Any) -> torch.Tensor:
        return torch.nn.functional.one_hot(drafted, 11).float()

    monkeypatch.setattr(distill, "logits_of_rows", logits)
    # First row: 7 and the end are right, the rest does not count. Second: 7 and 9 of four.
    assert distill.agreement(None, None, written[:, :2], 6, "cpu") == 4 / 6  # type: ignore[arg-type]
