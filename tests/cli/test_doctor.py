"""`archerfish doctor`: every fact is there, in words and as JSON."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from archerfish.cli import diagnosis, drift
from archerfish.cli.doctor import _why_not
from archerfish.cli.drift import split_documents
from archerfish.compress.drift import Drift
from archerfish.compress.formats import FormatDrift
from archerfish.console import logger
from archerfish.errors import NoKernel
from archerfish.ops import Choice, KernelTarget
from tests.checkpoints import CONFIG
from tests.cli.running import archerfish, assert_refused


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagnosis, "_MEMORY_SAMPLE", 1 << 20)
    monkeypatch.setattr("archerfish.machine.measure._BANDWIDTH_SECONDS", 0.0)


def test_json_has_every_fact() -> None:
    result = archerfish("doctor", "--json")
    assert (result.exit_code, result.stderr) == (0, "")
    found = json.loads(result.stdout)
    assert set(found) == {"versions", "cpu", "memory", "gpus", "device", "kernels", "problems", "model"}
    assert found["model"] is None
    packages = {"torch", "tokenizers", "safetensors", "huggingface_hub", "triton"}
    assert set(found["versions"]) == {"archerfish", "python"} | packages
    assert set(found["cpu"]) == {"name", "num_cores", "features", "has_hidden_amx", "onednn_max_cpu_isa"}
    assert found["cpu"]["num_cores"] >= 1 and len(found["cpu"]["features"]) >= 6
    assert 0 < found["memory"]["available"] <= found["memory"]["total"]
    assert found["memory"]["read_bandwidth"] > 0
    assert {kernel["dtype"] for kernel in found["kernels"]} == {"float32", "bfloat16"}
    assert {"operation", "kernel", "rejected", "dtype"} == set(found["kernels"][0])
    assert found["problems"] == []


def test_words_name_every_operation() -> None:
    result = archerfish("doctor")
    assert result.exit_code == 0
    for word in ("Versions", "torch", "CPU", "hidden AMX", "read bandwidth", "Kernels on", "attend", "bfloat16"):
        assert word in result.stdout


def test_a_model_is_shown_with_its_sizes_and_the_kernels_for_its_shapes() -> None:
    found = json.loads(archerfish("doctor", "perch", "--json").stdout)
    model = found["model"]
    assert (model["name"], model["dtype"], model["max_model_len"]) == ("perch", "bfloat16", 1024)
    assert model["weight_bytes"] == 2 * model["num_parameters"] > 2e7
    assert model["kv_bytes_per_request"] == 1024 * model["kv_bytes_per_token"]
    assert (
        0 < model["tokens_per_second_from_memory"] <= found["memory"]["read_bandwidth"] / model["weight_bytes"] * 1.01
    )
    assert {kernel["dtype"] for kernel in found["kernels"]} == {"bfloat16"}
    text = archerfish("doctor", "perch").stdout
    assert "Model: perch" in text and "for this model" in text and "1,024 tokens" in text


def test_a_kernel_that_a_models_shape_rules_out_is_named_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**CONFIG, "head_dim": 8}))
    found = json.loads(archerfish("doctor", str(tmp_path), "--json").stdout)
    attend = next(kernel for kernel in found["kernels"] if kernel["operation"] == "attend")
    assert attend["kernel"] == "reference" and attend["rejected"]


def test_a_model_that_is_not_there_is_refused() -> None:
    assert_refused(archerfish("doctor", "/no/such/directory"), "/no/such/directory")


def test_reasons_against_kernels_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    def choose(target: KernelTarget, _: object) -> tuple[None, list[Choice]]:
        rejected = [("turbo", "no engine [x]")]
        if target.dtype == "bfloat16":
            rejected.append(("steam", "no coal"))
        return None, [Choice("linear", "reference", tuple(rejected))]

    monkeypatch.setattr(diagnosis, "choose_ops", choose)
    assert _why_not(diagnosis.diagnose().kernels) == "turbo: no engine [x]\nsteam: no coal (bfloat16)"
    result = archerfish("doctor")
    assert "turbo: no engine [x]" in result.stdout and "steam: no coal (bfloat16)" in result.stdout


def test_a_missing_kernel_is_a_finding_not_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def choose(target: KernelTarget, _: object) -> tuple[None, list[Choice]]:
        raise NoKernel(f"no linear for {target.dtype}")

    monkeypatch.setattr(diagnosis, "choose_ops", choose)
    result = archerfish("doctor")
    assert result.exit_code == 0
    assert "no linear for float32" in result.stdout and "no linear for bfloat16" in result.stdout


# -- drift ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[object, ...]]:
    """What is to be measured, for which there are figures at once."""
    calls: list[tuple[object, ...]] = []

    def measure(
        model: str | None,
        documents: list[str] | None,
        max_tokens: int,
        formats: dict[str, object],
        progress: Callable[[str, float], None],
    ) -> Iterator[FormatDrift]:
        assert {"int8", "KV cache int8"} <= formats.keys()
        calls.append((model, documents, max_tokens))
        progress("int8", 1.0)
        figures = Drift(num_tokens=4064, original_perplexity=10.0, perplexity=10.25, divergence=0.0125, agreement=0.962)
        logger.info("a format was loaded")
        yield FormatDrift("int4, groups of 64, zero points", figures)
        yield FormatDrift("int8", figures)
        yield FormatDrift("fp8", None, "it needs a GPU")

    monkeypatch.setattr(drift, "measure_formats", measure)
    return calls


def test_drift_is_shown_for_each_format(calls: list[tuple[object, ...]]) -> None:
    result = archerfish("doctor", "--drift")
    assert result.exit_code == 0
    for word in (
        "4,064 tokens",
        "10.000",
        "int8",
        "10.250",
        "+2.50%",
        "0.01250",
        "96.2%",
        "fp8: not measured, it needs a GPU",
    ):
        assert word in result.stdout
    assert calls == [(None, None, 65536)]


def test_drift_fits_eighty_columns_and_logs_no_load(calls: list[tuple[object, ...]]) -> None:
    result = archerfish("doctor", "--drift", environ={"COLUMNS": "80"})
    assert "…" not in result.stdout and max(map(len, result.stdout.splitlines())) <= 80
    for word in ("perplexity", "against", "KL", "divergence", "top-1", "agreement"):
        assert word in result.stdout
    assert result.stderr == "measuring perch in float32 and in 10 lossy formats\n"
    assert calls


def test_drift_of_a_model_over_a_text_as_json(calls: list[tuple[object, ...]], tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("One.\n<|endoftext|>\nTwo.\n")
    result = archerfish("doctor", "--drift", "minnow", "--text", str(text), "--max-tokens", "99", "--json")
    [_, found, missing] = json.loads(result.stdout)["formats"]
    assert missing == {"format": "fp8", "reason": "it needs a GPU"}
    assert found == {
        "format": "int8",
        "num_tokens": 4064,
        "original_perplexity": 10.0,
        "perplexity": 10.25,
        "divergence": 0.0125,
        "agreement": 0.962,
    }
    assert calls == [("minnow", ["One.", "Two."], 99)]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("perch", "--text", __file__), "--text needs --drift"),
        (("--text", __file__), "--text needs --drift"),
        (("--drift", "--max-tokens", "65536"), "--max-tokens needs --text"),
    ],
)
def test_what_would_be_ignored_is_refused(arguments: tuple[str, ...], says: str) -> None:
    result = archerfish("doctor", *arguments)
    assert result.exit_code == 2
    assert says in result.stderr


def test_documents_lie_between_lines_that_part_them() -> None:
    assert split_documents("One\nmore\n<|endoftext|>\n\n<|endoftext|>\n two <|endoftext|>") == [
        "One\nmore",
        "two <|endoftext|>",
    ]
    assert split_documents("all\n\nof it\n") == ["all\n\nof it"]
