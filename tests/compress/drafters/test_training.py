"""Whole trainings of a tiny model: what is learned, that stopping changes nothing, what the card says."""

import re
import signal
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from archerfish.arch.heads import EagleSpec
from archerfish.compress.drafters import training
from archerfish.compress.drafters.batches import Batches
from archerfish.compress.drafters.eagle import EagleDrafter
from archerfish.compress.drafters.measure import measure
from archerfish.compress.drafters.medusa import MedusaDrafter
from archerfish.compress.drafters.samples import write_samples
from archerfish.compress.drafters.target import DraftingTarget
from archerfish.compress.drafters.train import train_drafter
from archerfish.config.settings import EngineConfig
from archerfish.engine.models import load_decoder
from archerfish.errors import ConfigError
from archerfish.models.eagle import Eagle
from archerfish.models.medusa import Medusa
from archerfish.ops import KernelTarget, choose_ops
from archerfish.weights.heads import load_head, read_head
from tests.compress.drafters.walkers import CONFIG, VOCAB_SIZE, options, write_walker

DRAFT_MODEL = {"method": "draft_model", "layers": 1, "hidden_size": 32, "intermediate_size": 16}


@pytest.fixture(scope="module")
def walker(tmp_path_factory: pytest.TempPathFactory) -> EngineConfig:
    directory = write_walker(tmp_path_factory.mktemp("target") / "walker")
    return EngineConfig(model=str(directory), device="cpu", threads=1)


EAGLE = {"method": "eagle", "intermediate_size": 16}
MEDUSA = {"method": "medusa", "layers": 2}
FEWER_TOKENS = [{**EAGLE, "vocabulary": 10}, {**MEDUSA, "vocabulary": 10}]


def _weights(directory: Path) -> dict[str, torch.Tensor]:
    [file] = directory.glob("*.safetensors")
    return load_file(file)


def _assert_same(one: Path, other: Path) -> None:
    before, after = _weights(one), _weights(other)
    assert before.keys() == after.keys()
    for name, value in before.items():
        assert torch.equal(value, after[name]), name


@pytest.mark.parametrize("method", [DRAFT_MODEL, EAGLE, MEDUSA], ids=lambda given: str(given["method"]))
def test_a_predictable_model_is_learned(walker: EngineConfig, tmp_path: Path, method: dict[str, object]) -> None:
    trained = train_drafter(walker, options(tmp_path / "out", **method, steps=200))
    assert trained is not None
    for score in trained.score.depths:
        assert score.acceptance > 0.9 and score.agreement > 0.9
    assert trained.score.depths[2].greedy_tokens > 3.6
    assert not (tmp_path / "out" / "state").exists()


@pytest.mark.parametrize("method", [DRAFT_MODEL, *FEWER_TOKENS], ids=lambda given: str(given["method"]))
def test_stopping_and_going_on_changes_no_bit(walker: EngineConfig, tmp_path: Path, method: dict[str, object]) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    train_drafter(walker, options(whole, **method, steps=11))
    for _ in range(2):
        assert train_drafter(walker, options(parts, **method, steps=11, max_steps=4)) is None
        assert (parts / "state" / "progress.pt").exists()
    assert train_drafter(walker, options(parts, **method, steps=11)) is not None
    _assert_same(whole, parts)


def test_an_error_costs_what_was_not_saved(
    walker: EngineConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    train_drafter(walker, options(whole, **DRAFT_MODEL, steps=8))
    monkeypatch.setattr(training, "SECONDS_BETWEEN_SAVES", 0.0)
    judged, calls = training.judged, 0

    def failing(*arguments: object) -> object:
        nonlocal calls
        calls += 1
        if calls == 5:
            raise RuntimeError("the power went out")
        return judged(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(training, "judged", failing)
    with pytest.raises(RuntimeError, match="power"):
        train_drafter(walker, options(parts, **DRAFT_MODEL, steps=8))
    assert train_drafter(walker, options(parts, **DRAFT_MODEL, steps=8)) is not None
    assert calls == 5 + 4
    _assert_same(whole, parts)


@pytest.mark.parametrize(("num_presses", "num_skipped"), [(1, 3), (2, 0)])
def test_one_interrupt_waits_for_the_step_and_two_tear_it(
    walker: EngineConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_presses: int, num_skipped: int
) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    train_drafter(walker, options(whole, **DRAFT_MODEL, steps=8))
    judged, calls = training.judged, 0

    def pressing(*arguments: object) -> object:
        nonlocal calls
        calls += 1
        if calls == 3:
            for _ in range(num_presses):
                signal.raise_signal(signal.SIGINT)
        return judged(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(training, "judged", pressing)
    with pytest.raises(KeyboardInterrupt):
        train_drafter(walker, options(parts, **DRAFT_MODEL, steps=8))
    assert train_drafter(walker, options(parts, **DRAFT_MODEL, steps=8)) is not None
    assert calls == 3 + 8 - num_skipped
    _assert_same(whole, parts)


def test_minutes_become_a_number_of_steps(walker: EngineConfig, tmp_path: Path) -> None:
    now = -1.0

    def clock() -> float:
        """Each look at it takes a second; so does a step, which looks once."""
        nonlocal now
        now += 1.0
        return now

    assert train_drafter(walker, options(tmp_path, **DRAFT_MODEL, minutes=1.5), clock) is not None
    steps = int(re.search(r"(\d+) steps of 8 texts", (tmp_path / "README.md").read_text())[1])  # type: ignore[index]
    assert 70 <= steps <= 90


def test_the_card_states_what_was_measured(walker: EngineConfig, tmp_path: Path) -> None:
    trained = train_drafter(walker, options(tmp_path, **DRAFT_MODEL, steps=5))
    assert trained is not None
    card = " ".join((tmp_path / "README.md").read_text().split())
    assert f"Drafter for {walker.model}" in card
    assert "32 texts of up to 24 tokens, 768 tokens in all" in card and "2 of them were held out" in card
    assert "5 steps of 8 texts" in card
    assert f"{trained.score.num_predictions:,} positions" in card
    for number, score in enumerate(trained.score.depths, 1):
        row = f"| {number} | {score.agreement:.1%} | {score.acceptance:.1%} "
        assert row + f"| {score.greedy_tokens:.2f} | {score.sampled_tokens:.2f} |" in card


@pytest.mark.parametrize("method", [EAGLE, MEDUSA, *FEWER_TOKENS], ids=lambda given: "-".join(map(str, given.values())))
def test_heads_are_written_as_they_were_trained(
    walker: EngineConfig, tmp_path: Path, method: dict[str, object]
) -> None:
    trained = train_drafter(walker, options(tmp_path, **method, steps=30))
    assert trained is not None
    target = load_decoder(replace(walker, dtype="float32"))
    spec = read_head(tmp_path, target.arch)
    assert spec.vocab_size == method.get("vocabulary", VOCAB_SIZE)
    ops = choose_ops(KernelTarget(device="cpu", dtype="float32")).ops
    drafter: EagleDrafter | MedusaDrafter
    if isinstance(spec, EagleSpec):
        drafter = EagleDrafter(Eagle(spec, target.embedding, ops, 64), 3, "walker")
    else:
        drafter = MedusaDrafter(Medusa(spec, target.head, ops), "walker")
    load_head(drafter.module, tmp_path)
    samples = write_samples(walker, options(tmp_path, **method), "cpu")
    again = measure(drafter, DraftingTarget(target, drafter.taps), Batches(samples, 8, 0, "cpu").held_out(), 3)
    assert again == trained.score


def test_what_is_written_can_be_loaded_and_started_from(walker: EngineConfig, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    train_drafter(walker, options(first, **DRAFT_MODEL, steps=3))
    arch = load_decoder(EngineConfig(model=str(first), device="cpu", threads=1)).arch
    assert (len(arch.layers), arch.hidden_size, arch.vocab_size) == (1, 32, VOCAB_SIZE)
    assert arch.max_positions == CONFIG["max_position_embeddings"]
    again = options(second, start=str(first), steps=1, learning_rate=1e-6)
    assert train_drafter(walker, again) is not None
    before, after = _weights(first), _weights(second)
    assert all(torch.allclose(before[name], after[name], atol=1e-3) for name in before)


def test_other_options_are_no_going_on(walker: EngineConfig, tmp_path: Path) -> None:
    train_drafter(walker, options(tmp_path, **DRAFT_MODEL, steps=3, max_steps=1))
    with pytest.raises(ConfigError, match="began with --steps 3, not 4"):
        train_drafter(walker, options(tmp_path, **DRAFT_MODEL, steps=4))


def test_a_directory_with_something_else_is_left_alone(walker: EngineConfig, tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("mine")
    with pytest.raises(ConfigError, match="is not empty"):
        train_drafter(walker, options(tmp_path, **DRAFT_MODEL))
    assert [path.name for path in tmp_path.iterdir()] == ["precious"]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({**DRAFT_MODEL, "length": 65}, "--length 65 is more than the model's context: make it 64 or less"),
        ({"method": "medusa", "vocabulary": 13}, "--vocabulary 13 is more than the model has"),
        ({"start": "minnow"}, "--start minnow has a vocabulary of 8192 tokens, and the target 12"),
        ({**DRAFT_MODEL, "hidden_size": 24}, "--hidden-size 24 must be a multiple of 16"),
    ],
)
def test_what_does_not_fit_the_model_is_refused(
    walker: EngineConfig, tmp_path: Path, given: dict[str, object], says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        train_drafter(walker, options(tmp_path / "out", **given))
