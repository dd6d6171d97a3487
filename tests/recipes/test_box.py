"""The recipe of the models in the box: it trains on what serving will write, and its measures hold."""

from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers

from archerfish.tokenizer import ChatTemplate
from recipes.box import evaluate
from recipes.box.chat import SPECIAL_TOKENS, TEMPLATE, write_conversation
from recipes.box.model import logits_of_rows, new_model, sample
from recipes.box.optimizer import learning_rate, orthogonalized
from recipes.box.tasks import about_passages, first_sentences, renamings


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
    asked = [
        {**message, "tool_calls": [{"type": "function", "function": message["tool_call"]}], "content": None}
        if "tool_call" in message
        else message
        for message in trained
    ]
    assert served(asked) == write_conversation(trained)
    tools = [
        {"type": "function", "function": {"name": name, "parameters": {"properties": {a: {} for a in arguments}}}}
        for name, arguments in {"find": ["city", "seats"], "book": ["day"]}.items()
    ]
    expected = write_conversation(trained, {"find": ["city", "seats"], "book": ["day"]})
    assert served(asked, tools=tools) == expected
    assert expected.startswith("<|system|>Tools: find(city, seats), book(day)<|end|>")


def test_tasks_answer_with_words_of_the_prompt() -> None:
    article = "Rome\nRome is the capital city of Italy in Europe. Many people visit it every single year. "
    article += "The Colosseum stands in the middle of the old town. Romulus founded it, as the legend says."
    [question] = first_sentences([article], 0)
    assert question.endswith("<|assistant|>Rome is the capital city of Italy in Europe.<|end|>")
    [quoted] = about_passages([article], 0)
    prompt, _, answer = quoted.partition("<|end|><|assistant|>")
    assert answer.removesuffix("<|end|>") in prompt
    story = "Once a boy named Tim had a kite. One day Tim lost it, and so Tim was sad. " * 3
    [told] = renamings([story], 0)
    prompt, _, answer = told.partition("<|end|><|assistant|>")
    assert "Tim" in prompt and "Tim" not in answer


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
    rates = [learning_rate(step / 1000) for step in range(1000)]
    top = rates.index(1.0)
    assert rates[:top] == sorted(rates[:top]) and rates[top:] == sorted(rates[top:], reverse=True)
    assert rates[0] < 0.01 and rates[500] == 1.0 and rates[-1] == 0.01
