"""What comes with the package is found, runs where no model is named, and can be loaded."""

from pathlib import Path

import pytest
import torch

from archerfish import LLM
from archerfish.box import DEFAULT_MODEL, draft_in_box, models_in_box
from archerfish.config.load import field_docs
from archerfish.config.settings import EngineConfig
from archerfish.errors import ModelNotFound
from archerfish.weights.describe import describe
from tests.checkpoints import write_checkpoint
from tests.cli.running import archerfish


def test_models_are_directories_with_a_config_the_default_first(box: Path) -> None:
    for name in ("minnow", "aspic", "perch", "__pycache__"):
        (box / name).mkdir()
        if name != "__pycache__":
            (box / name / "config.json").write_text("{}")
    (box / "notes.json").write_text("{}")
    assert list(models_in_box().items()) == [(name, box / name) for name in ("perch", "aspic", "minnow")]


def test_what_ships_can_be_loaded_and_is_named_in_the_help() -> None:
    help_text = field_docs(EngineConfig)["model"]
    assert help_text.endswith(f"By default {DEFAULT_MODEL}.")
    for name, directory in models_in_box().items():
        assert describe(directory).problem is None
        assert name in help_text


def test_drafters_for_perch_are_in_the_box(tmp_path: Path) -> None:
    perch, minnow = models_in_box().values()
    assert draft_in_box(perch, "draft_model") == minnow
    for method in ("eagle", "medusa"):
        assert draft_in_box(perch, method) == perch / method
    for method in ("draft_model", "eagle", "medusa"):
        assert draft_in_box(minnow, method) is None, "nothing is smaller"
        assert draft_in_box(tmp_path / DEFAULT_MODEL, method) is None, "only the name is the same"


def test_the_default_answers_where_no_model_is_named(box: Path) -> None:
    torch.set_num_threads(1)
    directory = write_checkpoint(box / DEFAULT_MODEL)
    write_checkpoint(box / "minnow")
    answers = []
    for model in (None, DEFAULT_MODEL, directory):
        with LLM(model, threads=1, max_num_seqs=2) as llm:
            answers.append(llm.generate("Hello", progress=False)[0].outputs[0].token_ids)
    assert answers[0] and answers[0] == answers[1] == answers[2]


@pytest.mark.parametrize("command", ["generate", "chat"])
def test_commands_use_it_too_and_say_so_next_to_the_answer(box: Path, command: str) -> None:
    write_checkpoint(box / DEFAULT_MODEL)
    options = ("--threads", "1", "--max-num-seqs", "2", "--max-tokens", "4", "--ignore-eos", "--temperature", "0")
    result = archerfish(command, *options, stdin=b"Hello\n")
    assert result.exit_code == 0, result.stderr
    assert DEFAULT_MODEL not in result.stdout
    named = archerfish(command, *options, "--model", DEFAULT_MODEL, stdin=b"Hello\n")
    assert named.stdout == result.stdout


def test_a_box_without_the_default_is_a_broken_installation(box: Path) -> None:
    write_checkpoint(box / "minnow")
    with pytest.raises(ModelNotFound, match="the default, perch, is missing"):
        LLM()
