"""The two models that ship: in the usual layout, equal to what another implementation computes, able to talk."""

import json
from pathlib import Path

import pytest
import torch
import transformers
from safetensors import safe_open

from archerfish import LLM, SamplingParams
from archerfish.box import models_in_box

MOST_MEGABYTES = 36
FILES = {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "generation_config.json"}
TEXT = "Once upon a time there was a little fish. It lived in a river, and every day it shot water at flies."
GREEDY = SamplingParams(temperature=0.0, max_tokens=64)
PASSAGE = "The fox ran into the forest. The hunter sat under an old oak tree. Then the rain came."
WALK = (
    "One day a boy named Tom went to the park with his dog. The dog saw a cat and ran away. Tom was sad. "
    "He called and called, and at last the dog came back. Tom was happy again."
)
HOUSE = "Anna lives in a small house by the sea. Her brother Paul has a red boat. Every morning they catch fish."


@pytest.fixture(autouse=True)
def one_quiet_thread() -> None:
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def perch() -> LLM:
    return LLM(dtype="float32", threads=1, max_num_seqs=8)


def answer(llm: LLM, *turns: str) -> str:
    """To the last of the user's turns, after the model's own answers to the others."""
    messages: list[dict[str, str]] = []
    for turn in turns:
        messages.append({"role": "user", "content": turn})
        [output] = llm.chat(messages, GREEDY, progress=False)
        assert output.outputs[0].finish_reason == "stop", f"it did not end its turn: {output.outputs[0].text}"
        messages.append({"role": "assistant", "content": output.outputs[0].text})
    return messages[-1]["content"]


def test_there_are_two_in_the_usual_layout_and_small_enough() -> None:
    assert list(models_in_box()) == ["perch", "minnow"]
    for directory in models_in_box().values():
        assert {path.name for path in directory.iterdir() if path.is_file()} == FILES
        with safe_open(directory / "model.safetensors", framework="pt") as file:
            assert {file.get_slice(name).get_dtype() for name in file.keys()} == {"BF16"}  # noqa: SIM118 - not a dict
    root = models_in_box()["perch"].parent
    assert sum(path.stat().st_size for path in root.rglob("*") if path.is_file()) < MOST_MEGABYTES * 1e6


def test_they_share_one_tokenizer() -> None:
    perch, minnow = models_in_box().values()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (perch / name).read_bytes() == (minnow / name).read_bytes()
    vocabulary = json.loads((perch / "config.json").read_text())["vocab_size"]
    assert transformers.AutoTokenizer.from_pretrained(perch).vocab_size == vocabulary == 8192


@pytest.mark.parametrize("name", ["perch", "minnow"])
def test_transformers_loads_them_and_gives_the_same_logits_and_tokens(name: str) -> None:
    directory = models_in_box()[name]
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    ids = tokenizer(TEXT)["input_ids"]
    with torch.no_grad():
        expected = torch.log_softmax(model(torch.tensor([ids])).logits[0], dim=-1)
        written = model.generate(torch.tensor([ids]), max_new_tokens=24, do_sample=False)[0, len(ids) :].tolist()
    vocabulary = expected.shape[-1]
    with LLM(name, dtype="float32", threads=1, max_num_seqs=2) as llm:
        params = SamplingParams(temperature=0.0, max_tokens=24, prompt_logprobs=vocabulary)
        [output] = llm.generate(TEXT, params, progress=False)
    assert output.prompt_token_ids == ids and output.outputs[0].token_ids == written
    assert output.prompt_logprobs is not None
    for row, entries in zip(expected, output.prompt_logprobs[1:], strict=False):
        assert entries is not None
        ours = torch.tensor([entries[token].logprob for token in range(vocabulary)])
        torch.testing.assert_close(ours, row, atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", ["perch", "minnow"])
def test_transformers_writes_conversations_as_we_do(name: str) -> None:
    directory = models_in_box()[name]
    messages = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hello!"}]
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    expected = tokenizer.apply_chat_template(messages, add_generation_prompt=True)["input_ids"]
    with LLM(name, dtype="float32", threads=1, max_num_seqs=2) as llm:
        [output] = llm.chat(messages, SamplingParams(max_tokens=1), progress=False)
    assert output.prompt_token_ids == expected


def test_perch_greets_and_ends_its_turn(perch: LLM) -> None:
    assert answer(perch, "Hello!").startswith(("Hello", "Hi"))


def test_perch_knows_the_best_known_topics(perch: LLM) -> None:
    april = "April is the fourth month of the year"
    assert answer(perch, "What is April?").startswith(april)
    assert answer(perch, "Hello!", "What is April?").startswith(april)
    assert answer(perch, "What is a volcano?").startswith("A volcano is a mountain that has lava")


def test_perch_quotes_from_a_passage(perch: LLM) -> None:
    quoted = answer(perch, f"{PASSAGE}\n\nWhere did the hunter sit?").rstrip(".")
    assert quoted in PASSAGE and "oak tree" in quoted
    assert answer(perch, "Hello!", f"{HOUSE}\n\nWhere does Anna live?") == "Anna lives in a small house by the sea."
    assert answer(perch, f"{PASSAGE}\n\nQuestion: Who ran into the forest?").lower() == "the fox"


def test_perch_retells_with_another_name(perch: LLM) -> None:
    changed = answer(perch, f"Write this again, but change Tom to Ben:\n{WALK}")
    assert changed == WALK.replace("Tom", "Ben")


def test_perch_writes_a_story(perch: LLM) -> None:
    [output] = perch.generate("Once upon a time", GREEDY, progress=False)
    words = output.outputs[0].text.split()
    assert len(words) > 25 and len(set(words)) > 15, "a story, not a loop"


def test_the_card_is_in_the_box() -> None:
    root: Path = models_in_box()["perch"].parent
    card = (root / "MODEL_CARD.md").read_text()
    assert "(curves.svg)" in card and (root / "curves.svg").stat().st_size > 1000
    assert "CC BY-SA" in card and "bits per byte" in card.lower()
