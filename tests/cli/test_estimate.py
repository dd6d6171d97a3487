"""`archerfish estimate`: a table within 80 columns, or JSON; exit code 2 where the model does not fit."""

import json
from pathlib import Path

import pytest
import torch

from tests.cli.running import archerfish, assert_refused

MEMORY = ("--memory", "1G")


def test_the_table_says_what_is_needed_and_what_fits() -> None:
    result = archerfish("estimate", "perch", *MEMORY, "--max-num-seqs", "4")
    assert result.exit_code == 0 and result.stderr == ""
    assert all(len(line) <= 80 for line in result.stdout.splitlines())
    for said in (
        "perch: 12.1M parameters",
        "weights",
        "activations",
        "KV cache of one request of 1,024 tokens",
        "needed",
    ):
        assert said in result.stdout
    assert "It fits: 4,096 tokens in 256 blocks, 4.0 requests of 1,024 tokens." in result.stdout


WITHOUT_GPU = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        pytest.param(
            (),
            "Planned for the CPU with 50% of its free memory (--gpu-memory-utilization 0.5). "
            "There is no GPU here; --device cuda plans for one.",
            marks=WITHOUT_GPU,
        ),
        (
            ("--device", "cpu", "--gpu-memory-utilization", "0.25"),
            "Planned for the CPU with 25% of its free memory (--gpu-memory-utilization 0.25).",
        ),
        pytest.param(
            ("--device", "cuda"),
            "Planned for a GPU, though there is none here, with 90% of its free memory (--gpu-memory-utilization 0.9).",
            marks=WITHOUT_GPU,
        ),
        (("--device", "cpu", "--kv-cache-memory-bytes", "64M"), "Planned for the CPU."),
    ],
    ids=" ".join,
)
def test_it_says_which_device_is_planned_for_and_how_much_of_it(flags: tuple[str, ...], says: str) -> None:
    result = archerfish("estimate", "perch", *MEMORY, *flags)
    assert result.exit_code == 0, result.stderr
    text = " ".join(result.stdout.split())
    assert says in text and ("There is no GPU" in text) == ("There is no GPU" in says)
    found = json.loads(archerfish("estimate", "perch", *MEMORY, *flags, "--json").stdout)
    assert found["device_is_here"] == ("none here" not in says)


def test_settings_come_from_flags_and_environment() -> None:
    environ = {"ARCHERFISH_MAX_MODEL_LEN": "512"}
    found = json.loads(archerfish("estimate", *MEMORY, "--quantization", "int8", "--json", environ=environ).stdout)
    assert (found["model"], found["quantization"], found["max_model_len"]) == ("perch", "int8", 512)
    assert found["available"] == 1 << 30 and found["fit"]["num_blocks"] > 0 and found["remedy"] is None


@pytest.mark.parametrize("form", [(), ("--json",)], ids=["table", "json"])
def test_what_does_not_fit_is_shown_with_what_would_make_it_fit(form: tuple[str, ...]) -> None:
    result = archerfish("estimate", "--memory", "60M", *form)
    assert result.exit_code == 2
    assert (
        result.stderr.startswith("error: the model does not fit in memory. Use --") and result.stderr.count("\n") == 1
    )
    assert "needed" in result.stdout and "It fits" not in result.stdout
    if form:
        found = json.loads(result.stdout)
        assert found["fit"] is None
        flags = [word for flag, value in found["suggestion"].items() for word in (flag, str(value))]
        assert archerfish("estimate", "--memory", "60M", *form, *flags).exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("nowhere/at-all",), "there is no directory nowhere/at-all"),
        (("perch", "--model", "minnow"), "the model was given twice"),
        (("--memory", "much"), "--memory: 'much' is not a whole number"),
        (("--memory", "0"), "--memory 0: it must be at least 1"),
        (("--max-model-len", "1"), "--max-model-len 1: it must be at least 2"),
        (("--device", "cuda", "--kernels", "amx"), "say with --memory how much to plan for"),
    ],
    ids=str,
)
def test_mistakes_are_one_line(arguments: tuple[str, ...], says: str) -> None:
    assert_refused(archerfish("estimate", *arguments), says)


def test_an_unknown_family_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "mamba"}')
    assert_refused(archerfish("estimate", str(tmp_path)), "model type 'mamba' is not supported")
