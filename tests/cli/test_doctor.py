"""`archerfish doctor`: every fact is there, in words and as JSON."""

import json

import pytest

from archerfish.cli import diagnosis
from archerfish.cli.doctor import _why_not
from archerfish.errors import NoKernel
from archerfish.ops import Choice, Target
from tests.cli.running import archerfish


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagnosis, "_MEMORY_SAMPLE", 1 << 20)
    monkeypatch.setattr("archerfish.metrics.bandwidth._LONGEST", 0.0)


def test_json_has_every_fact() -> None:
    result = archerfish("doctor", "--json")
    assert (result.exit_code, result.stderr) == (0, "")
    found = json.loads(result.stdout)
    assert set(found) == {"versions", "cpu", "memory", "gpus", "device", "kernels", "problems"}
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


def test_reasons_against_kernels_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    def choose(target: Target, _: object) -> tuple[None, list[Choice]]:
        rejected = [("turbo", "no engine [x]")]
        if target.dtype == "bfloat16":
            rejected.append(("steam", "no coal"))
        return None, [Choice("linear", "reference", tuple(rejected))]

    monkeypatch.setattr(diagnosis, "choose_ops", choose)
    assert _why_not(diagnosis.diagnose().kernels) == "turbo: no engine [x]\nsteam: no coal (bfloat16)"
    result = archerfish("doctor")
    assert "turbo: no engine [x]" in result.stdout and "steam: no coal (bfloat16)" in result.stdout


def test_a_missing_kernel_is_a_finding_not_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def choose(target: Target, _: object) -> tuple[None, list[Choice]]:
        raise NoKernel(f"no linear for {target.dtype}")

    monkeypatch.setattr(diagnosis, "choose_ops", choose)
    result = archerfish("doctor")
    assert result.exit_code == 0
    assert "no linear for float32" in result.stdout and "no linear for bfloat16" in result.stdout
