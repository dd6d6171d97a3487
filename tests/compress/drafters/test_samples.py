"""What a model writes to be learned from, and the batches it is learned in."""

from pathlib import Path

import pytest
import torch

from archerfish.compress.drafters.batches import Batches
from archerfish.compress.drafters.samples import Samples, write_samples
from archerfish.config.settings import EngineConfig
from archerfish.errors import ConfigError
from tests.checkpoints import write_checkpoint
from tests.compress.drafters.walkers import STEP, VOCAB_SIZE, options, write_walker


def test_half_is_greedy_and_everything_is_seeded(tmp_path: Path) -> None:
    config = EngineConfig(model=str(write_walker(tmp_path / "walker")), device="cpu", threads=1)
    first, again = (write_samples(config, options(tmp_path), "cpu") for _ in range(2))
    assert torch.equal(first.tokens, again.tokens)
    assert first.tokens.shape == (32, 24) and (first.lengths == 24).all() and (first.given == 1).all()
    assert (first.num_training, first.num_held_out, first.num_tokens) == (30, 2, 32 * 24)
    # Beginnings are at most half as long; behind them every other text takes the likeliest token each time.
    tail = first.tokens[::2, 13:]
    assert (tail[:, 1:] == (tail[:, :-1] + STEP) % VOCAB_SIZE).all()


@pytest.fixture
def llama(tmp_path: Path) -> EngineConfig:
    return EngineConfig(model=str(write_checkpoint(tmp_path / "llama")), device="cpu", threads=1)


def test_prompts_are_answered_and_none_is_on_both_sides(llama: EngineConfig, tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text(
        '{"prompt": "The quick"}\n{"messages": [{"role": "user", "content": "fox"}]}\n{"prompt": "lazy dog"}\n'
    )
    found = write_samples(llama, options(tmp_path, prompts=str(file), length=64), "cpu")
    prompts = [tuple(row[:given].tolist()) for row, given in zip(found.tokens, found.given.tolist(), strict=True)]
    assert len(set(prompts)) == 3
    assert not set(prompts[: found.num_training]) & set(prompts[found.num_training :])
    assert (found.lengths > found.given).all()


def test_prompts_that_leave_no_room_are_refused(llama: EngineConfig, tmp_path: Path) -> None:
    file = tmp_path / "prompts.txt"
    file.write_text("The quick brown fox jumps\n" + "over the lazy dog " * 9 + "\n")
    with pytest.raises(ConfigError, match="fewer than two prompts leave space for an answer in --length 24"):
        write_samples(llama, options(tmp_path, prompts=str(file)), "cpu")


def _samples() -> Samples:
    tokens = torch.tensor([[1, 5, 5, 2, 0], [1, 5, 2, 7, 7], [1, 3, 0, 0, 0], [9, 9, 9, 9, 9]], dtype=torch.int32)
    lengths, given = torch.tensor([4, 5, 2, 5]), torch.tensor([1, 2, 1, 1])
    return Samples(tokens=tokens, lengths=lengths, given=given, num_training=3)


def test_frequent_tokens_are_counted_in_what_is_learned() -> None:
    assert _samples().frequent(2, 10).tolist() == [2, 5]
    assert _samples().frequent(4, 10).tolist() == [2, 3, 5, 7]


def test_samples_come_back_from_their_file(tmp_path: Path) -> None:
    _samples().save(tmp_path / "samples.safetensors")
    found = Samples.load(tmp_path / "samples.safetensors")
    assert torch.equal(found.tokens, _samples().tokens) and found.num_training == 3


def test_every_sample_comes_once_a_turn() -> None:
    batches = Batches(_samples(), 3, seed=4, device="cpu")
    turns = [batches.of_step(step).tokens for step in range(6)]
    for rows in turns:
        assert sorted(row[:3].tolist() for row in rows) == [[1, 3, 0], [1, 5, 2], [1, 5, 5]]
    assert len({str(rows.tolist()) for rows in turns}) > 1
    assert torch.equal(batches.of_step(2).tokens, turns[2])


def test_positions_count_whose_next_token_is_drafted() -> None:
    [batch] = Batches(_samples(), 2, seed=0, device="cpu").held_out()
    assert batch.tokens.tolist() == [[9] * 5] and batch.own.tolist() == [[0, 1, 1, 1, 0]]
    every = Batches(_samples(), 3, seed=0, device="cpu").of_step(0)
    own = {str(tokens.tolist()): row.tolist() for tokens, row in zip(every.tokens, every.own, strict=True)}
    assert own["[1, 5, 5, 2, 0]"] == [0, 1, 1, 0, 0]
    assert own["[1, 5, 2, 7, 7]"] == [0, 0, 1, 1, 0]
    assert own["[1, 3, 0, 0, 0]"] == [0, 0, 0, 0, 0]
