"""A model that cannot be used costs the user one line that names it, and the exit code 2."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from archerfish.cli.main import run
from tests.checkpoints import CONFIG, write_checkpoint


def _config(**changes: object) -> Callable[[Path], object]:
    return lambda model: (model / "config.json").write_text(json.dumps({**CONFIG, **changes}))


def _replace(name: str, content: bytes) -> Callable[[Path], object]:
    return lambda model: (model / name).write_bytes(content)


def _truncate(model: Path) -> None:
    file = model / "model.safetensors"
    file.write_bytes(file.read_bytes()[:1000])


BREAKAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "config is not JSON": (_replace("config.json", b"{"), "config.json"),
    "config is not UTF-8": (_replace("config.json", b"\xff\xfe\x00"), "UTF-8"),
    "unknown architecture": (_config(model_type="mamba"), "mamba"),
    "unknown field": (_config(mystery=1), "mystery"),
    "quantized": (_config(quantization_config={"quant_method": "awq"}), "quantized"),
    "truncated weights": (_truncate, "model.safetensors"),
    "mislabelled weights": (_replace("model.safetensors", b"PK\x03\x04" * 50), "model.safetensors"),
    "weights of another shape": (_config(intermediate_size=96), "gate_proj"),
    "weights of another model": (_config(num_hidden_layers=4), "missing"),
    "no weights": (lambda model: (model / "model.safetensors").unlink(), "safetensors"),
    "broken tokenizer": (_replace("tokenizer.json", b"{}"), "tokenizer.json"),
    "broken generation config": (_replace("generation_config.json", b'{"temperature": -3}'), "generation_config.json"),
    "an end token that is none": (_config(eos_token_id="x"), "eos_token_id"),
}


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("model") / "good")


def error_line(arguments: list[str], capfd: pytest.CaptureFixture[str]) -> str:
    assert run(arguments) == 2
    out, err = capfd.readouterr()
    lines = [line for line in err.splitlines() if line]
    assert out == "" and len(lines) == 1 and lines[0].startswith("error: "), err
    return lines[0]


@pytest.mark.parametrize("breakage", BREAKAGES)
def test_broken_models(breakage: str, good: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    model = Path(shutil.copytree(good, tmp_path / "model"))
    damage, named = BREAKAGES[breakage]
    damage(model)
    assert named in error_line(["generate", "Hello", "--model", str(model)], capfd)


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--max-model-len", "1000"], "256"),
        (["--max-model-len", "1"], "--max-model-len 1"),
        (["--max-num-seqs", "0"], "--max-num-seqs 0"),
        (["--max-num-batched-tokens", "4", "--max-num-seqs", "8"], "--max-num-batched-tokens 4"),
        (["--gpu-memory-utilization", "1.5"], "--gpu-memory-utilization 1.5"),
    ],
)
def test_impossible_settings(flags: list[str], named: str, good: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert named in error_line(["generate", "Hello", "--model", str(good), *flags], capfd)


def test_a_cache_that_does_not_fit_shows_where_the_memory_goes(good: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["generate", "Hello", "--model", str(good), "--kv-cache-memory-bytes", "4k"]) == 2
    _, err = capfd.readouterr()
    assert err.startswith("error: the model does not fit")
    for word in ("weights", "activations", "KV cache of one request of 256 tokens", "available"):
        assert word in err
    flag, value = err.splitlines()[-1].removeprefix("Use ").removesuffix(".").split()
    assert run(["generate", "Hello", "--model", str(good), flag, value, "--max-tokens", "2"]) == 0


def test_prompts_that_cannot_be_answered(good: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for prompt, named in (("", "prompt"), ("word " * 400, "256")):
        assert run(["generate", prompt, "--model", str(good)]) == 2
        out, err = capfd.readouterr()
        assert out == "" and "Traceback" not in err
        assert err.splitlines()[-1].startswith("error: ") and named in err.splitlines()[-1]
