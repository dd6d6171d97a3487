"""Prompts of load tests: as long and as shared as they should be, and the same for the same seed."""

import json
from pathlib import Path
from typing import Any

import pytest

from archerfish.bench.serve.datasets import DATASETS, DatasetOptions, Sample, SampleMessage, Words, make_samples
from archerfish.box import models_in_box
from archerfish.errors import ConfigError
from archerfish.tokenizer import Tokenizer
from tests.checkpoints import write_tokenizer


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.load(models_in_box()["perch"])


@pytest.fixture(scope="module")
def words(tokenizer: Tokenizer) -> Words:
    return Words(tokenizer)


NO_TOKENIZER = Words(None)


def _make(words: Words, count: int, seed: int = 0, **options: Any) -> list[Sample]:
    return make_samples(DatasetOptions(**options), words, count, seed)


def _ids(tokenizer: Tokenizer, sample: Sample) -> list[int]:
    assert isinstance(sample.prompt, str)
    return tokenizer.encode(sample.prompt, add_special_tokens=False)


def _common(first: list[int], second: list[int]) -> int:
    pairs = zip(first, second, strict=False)
    return next((place for place, (a, b) in enumerate(pairs) if a != b), min(len(first), len(second)))


def test_random_lengths_are_exact(words: Words, tokenizer: Tokenizer) -> None:
    samples = _make(words, 40, random_input_len=60, random_output_len=20, random_range_ratio=0.5)
    for sample in samples:
        assert len(_ids(tokenizer, sample)) == sample.num_prompt_tokens
        assert sample.num_prompt_tokens is not None and 30 <= sample.num_prompt_tokens <= 90
        assert 10 <= sample.num_output_tokens <= 30
        assert sample.must_write_all and sample.num_shared_tokens == 0
    assert len({sample.num_prompt_tokens for sample in samples}) > 10
    assert samples == _make(words, 40, random_input_len=60, random_output_len=20, random_range_ratio=0.5)
    assert samples[0] != _make(words, 40, seed=1, random_input_len=60)[0]


def test_words_of_several_tokens_add_up(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    tokenizer = Tokenizer.load(tmp_path)
    for sample in _make(Words(tokenizer), 10, random_input_len=50):
        assert sample.num_prompt_tokens == len(_ids(tokenizer, sample))
        assert 48 <= sample.num_prompt_tokens <= 50


def test_without_a_tokenizer_words_are_counted() -> None:
    [sample] = _make(NO_TOKENIZER, 1, random_input_len=30, random_prefix_len=5)
    assert isinstance(sample.prompt, str) and len(sample.prompt.split()) == 35
    assert (sample.num_prompt_tokens, sample.num_shared_tokens) == (None, 5)


def test_prefixes_come_again(words: Words, tokenizer: Tokenizer) -> None:
    samples = _make(
        words,
        12,
        dataset_name="prefix_repetition",
        prefix_repetition_prefix_len=32,
        prefix_repetition_suffix_len=16,
        prefix_repetition_num_prefixes=3,
    )
    prompts = [_ids(tokenizer, sample) for sample in samples]
    groups = {tuple(prompt[:32]) for prompt in prompts}
    assert len(groups) == 3 and all(sum(tuple(prompt[:32]) == one for prompt in prompts) == 4 for one in groups)
    assert len({tuple(prompt[32:]) for prompt in prompts}) == 12
    assert all((sample.num_prompt_tokens, sample.num_shared_tokens) == (48, 32) for sample in samples)


def test_mooncakes_hashes_become_shared_prefixes(words: Words, tokenizer: Tokenizer, tmp_path: Path) -> None:
    rows = [
        {"timestamp": 0, "input_length": 1600, "output_length": 50, "hash_ids": [0, 1, 2, 3]},
        {"timestamp": 3000, "input_length": 1300, "output_length": 20, "hash_ids": [0, 1, 9]},
        {"timestamp": 3500, "input_length": 1600, "output_length": 1, "hash_ids": [8, 1, 2, 3]},
        {"timestamp": 9000, "input_length": 1600, "output_length": 1, "hash_ids": [0, 1, 2, 3]},
    ]
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    samples = _make(words, 4, dataset_name="mooncake", dataset_path=str(path), length_scale=1 / 16)
    prompts = [_ids(tokenizer, sample) for sample in samples]
    assert [len(prompt) for prompt in prompts] == [100, 81, 100, 100]
    assert [sample.num_output_tokens for sample in samples] == [3, 1, 1, 1]
    assert [sample.time for sample in samples] == [0.0, 3.0, 3.5, 9.0]
    assert _common(prompts[0], prompts[1]) == 64  # Two blocks of 512 / 16.
    assert _common(prompts[0], prompts[2]) == 0
    assert prompts[0] == prompts[3]
    assert [sample.num_shared_tokens for sample in samples] == [0, 64, 0, 128]


def test_azures_times_and_lengths(words: Words, tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:15:46.6805900,37,44\n2023-11-16 18:15:47.1805900,396,109\n"
    )
    first, second = _make(words, 2, dataset_name="azure", dataset_path=str(path))
    assert (first.num_prompt_tokens, first.num_output_tokens) == (37, 44)
    assert (second.num_prompt_tokens, second.num_output_tokens) == (396, 109)
    assert first.time is not None and second.time is not None
    assert second.time - first.time == pytest.approx(0.5)
    with pytest.raises(ConfigError, match="--num-prompts 2 or fewer"):
        _make(words, 3, dataset_name="azure", dataset_path=str(path))


def test_sharegpt_sends_first_questions(tmp_path: Path) -> None:
    def talk(*turns: str) -> dict[str, Any]:
        roles = ("human", "gpt") * len(turns)
        return {"conversations": [{"from": role, "value": turn} for role, turn in zip(roles, turns, strict=False)]}

    talks = [
        talk("why is the sky blue", "because the air scatters blue light"),
        talk("short", "too short a question"),
        talk("nobody ever answered this one"),
        talk(" ".join(["long"] * 1025), "a question that is too long"),
        {"conversations": [{"from": "system", "value": "x"}, {"from": "human", "value": "y"}]},
    ]
    path = tmp_path / "talks.json"
    path.write_text(json.dumps(talks))
    samples = _make(NO_TOKENIZER, 3, dataset_name="sharegpt", dataset_path=str(path))
    assert {(sample.prompt, sample.num_output_tokens) for sample in samples} == {("why is the sky blue", 6)}
    assert not samples[0].must_write_all and samples[0].num_shared_tokens is None
    [long] = _make(NO_TOKENIZER, 1, dataset_name="sharegpt", dataset_path=str(path), output_len=40)
    assert long.num_output_tokens == 40


def test_prompts_of_many_shapes(tmp_path: Path) -> None:
    lines: list[dict[str, Any]] = [
        {"prompt": "a b c", "output_tokens": 7},
        {"question": "who"},
        {"question_id": 81, "turns": ["first", "second"]},
        {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]},
    ]
    path = tmp_path / "prompts.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)) + "\n\n")
    samples = _make(NO_TOKENIZER, 6, dataset_name="custom", dataset_path=str(path))
    prompts = [sample.prompt for sample in samples]
    assert prompts == ["a b c", "who", "first", (SampleMessage("user", "hi"),), "a b c", "who"]
    assert [sample.num_output_tokens for sample in samples[:2]] == [7, 256]


def test_the_boxs_prompts(words: Words) -> None:
    samples = _make(words, 20, dataset_name="box", output_len=9)
    assert len({sample.prompt for sample in samples}) == 16
    assert {sample.num_output_tokens for sample in samples} == {9}


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("custom", "{broken", "line 1 is not JSON"),
        ("custom", "[1]", "must be a JSON object"),
        ("custom", '{"answer": "x"}', "there is no text in prompt"),
        ("custom", '{"messages": [{"role": "assistant", "content": "x"}]}', "none of its messages is a user's"),
        ("custom", "", "no prompt that can be sent"),
        ("sharegpt", "{}", "must hold a JSON list"),
        ("sharegpt", "[1]", "no list in conversations"),
        ("azure", "a,b\n1,2\n", "must have the columns"),
        ("azure", "TIMESTAMP,ContextTokens,GeneratedTokens\nnow,1,2\n", "line 2"),
        ("mooncake", '{"timestamp": 0}', "hash_ids are needed"),
    ],
)
def test_files_of_another_shape_are_refused(name: str, content: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text(content)
    with pytest.raises(ConfigError, match=says):
        _make(NO_TOKENIZER, 1, dataset_name=name, dataset_path=str(path))


@pytest.mark.parametrize("name", [name for name in DATASETS if name not in ("random", "prefix_repetition", "box")])
def test_a_file_is_needed_and_must_be_there(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="needs --dataset-path"):
        _make(NO_TOKENIZER, 1, dataset_name=name)
    with pytest.raises(ConfigError, match="cannot read"):
        _make(NO_TOKENIZER, 1, dataset_name=name, dataset_path=str(tmp_path / "missing"))


@pytest.mark.parametrize(
    "options",
    [
        {"random_input_len": 0},
        {"output_len": 0},
        {"random_range_ratio": 1.0},
        {"random_prefix_len": -1},
        {"length_scale": 0.0},
    ],
)
def test_absurd_lengths_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="--"):
        DatasetOptions(**options)
