"""`archerfish train-draft` from the command line."""

from pathlib import Path

from tests.cli.running import RANDOM_LLAMA, archerfish, assert_refused

MODEL = ("--model", str(RANDOM_LLAMA), "--load-format", "dummy", "--threads", "1", "--device", "cpu")
SMALL = ("--samples", "16", "--length", "12", "--batch", "4", "--depths", "2", "--steps", "3")
SHAPE = ("--method", "draft_model", "--layers", "1")


def test_a_draft_model_is_trained_in_two_goes(tmp_path: Path) -> None:
    output = ("--output", str(tmp_path / "out"))
    first = archerfish("train-draft", *MODEL, *SMALL, *SHAPE, *output, "--max-steps", "2")
    assert first.exit_code == 0 and "run the same command to resume" in first.stdout
    second = archerfish("train-draft", *MODEL, *SMALL, *SHAPE, *output)
    assert second.exit_code == 0 and "a step that verifies 2 generates" in second.stdout
    assert {"README.md", "config.json", "model.safetensors"} <= {path.name for path in (tmp_path / "out").iterdir()}
    third = archerfish("train-draft", *MODEL, *SMALL, *SHAPE, *output)
    assert_refused(third, "is not empty")


def test_missing_options_are_named(tmp_path: Path) -> None:
    assert_refused(archerfish("train-draft", "--method", "medusa"), "train-draft needs --output")
    assert_refused(archerfish("train-draft", "--output", str(tmp_path)), "train-draft needs --method")


def test_options_of_other_methods_are_refused(tmp_path: Path) -> None:
    result = archerfish("train-draft", "--method", "eagle", "--layers", "2", "--output", str(tmp_path))
    assert_refused(result, "--layers is for --method medusa or draft_model")
