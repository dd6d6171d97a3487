"""What an estimate says of a model is what its engine then comes to, and takes no more of the model than its config."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from archerfish import LLM
from archerfish.box import models_in_box
from archerfish.config import EngineConfig
from archerfish.engine.estimate import Estimate, Fit, estimate
from archerfish.errors import ConfigError, DoesNotFit, ModelNotFound, UnsupportedModel
from tests.checkpoints import CONFIG
from tests.weights.test_bad_checkpoints import change_config

FREE = 300 << 20
PERCH = models_in_box()["perch"]
SETTINGS: dict[str, dict[str, Any]] = {
    "as it comes": {},
    "without a drafter": {"speculative_config": {"method": "off"}},
    "eagle": {"speculative_config": {"method": "eagle"}},
    "medusa": {"speculative_config": {"method": "medusa"}},
    "a small step": {"max_num_batched_tokens": 8, "block_size": 32},
    "a short context": {"max_model_len": 100, "max_num_seqs": 3},
    "more of the memory": {"gpu_memory_utilization": 0.9, "max_num_seqs": 1000, "max_num_batched_tokens": 1000},
    "a given cache": {"kv_cache_memory_bytes": 20 << 20},
    "int8": {"quantization": "int8", "kv_cache_dtype": "int8"},
    "int4": {"quantization": "int4", "quantization_rounding": "nearest"},
    "float32 in plain torch": {"dtype": "float32", "kernels": "reference"},
}


@pytest.fixture(autouse=True)
def free_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Always the same, whatever else runs here."""
    monkeypatch.setattr("archerfish.engine.footprint.available_memory", lambda: FREE)


def of(**settings: Any) -> Estimate:
    return estimate(EngineConfig(threads=1, **settings))


@pytest.mark.parametrize("name", SETTINGS)
def test_an_engine_has_the_cache_that_was_estimated(name: str) -> None:
    settings = SETTINGS[name]
    found = of(**settings)
    with LLM(threads=1, skip_tokenizer_init=True, **settings) as llm:
        size, config = llm.assembly.cache_size, llm.assembly.config
    assert found.fit == Fit(
        num_blocks=size.num_blocks,
        num_bytes=size.num_bytes,
        num_tokens=size.num_tokens,
        num_requests=size.num_requests,
    )
    for name in ("dtype", "device", "quantization", "kv_cache_dtype", "max_model_len", "max_num_seqs", "block_size"):
        assert getattr(found, name) == getattr(config, name)
    assert found.max_num_batched_tokens == config.max_num_batched_tokens


@pytest.mark.parametrize("settings", [{"gpu_memory_utilization": 0.1}, {"kv_cache_memory_bytes": 1000}], ids=str)
def test_an_engine_is_refused_with_the_remedy_that_was_estimated(settings: dict[str, Any]) -> None:
    found = of(**settings)
    assert found.fit is None and found.suggestion and found.remedy is not None
    with pytest.raises(DoesNotFit) as caught:
        LLM(threads=1, skip_tokenizer_init=True, **settings)
    assert str(caught.value).endswith(found.remedy)
    assert all(f"{flag} {value}" in found.remedy for flag, value in found.suggestion.items())
    changes = {flag.removeprefix("--").replace("-", "_"): value for flag, value in found.suggestion.items()}
    assert of(**{**settings, **changes}).fit is not None


def test_nothing_but_the_config_is_read(tmp_path: Path) -> None:
    shutil.copy(PERCH / "config.json", tmp_path)
    off = {"method": "off"}
    whole, alone = of(speculative_config=off), of(model=str(tmp_path), speculative_config=off)
    assert (alone.fit, alone.needed) == (whole.fit, whole.needed)
    file = of(model=str(tmp_path / "config.json"), speculative_config=off)
    assert (file.fit, file.needed) == (whole.fit, whole.needed)


def test_nothing_but_the_config_is_downloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted: dict[str, list[str]] = {}

    def snapshot_download(name: str, *, allow_patterns: list[str], **_: Any) -> str:
        wanted[name] = allow_patterns
        directory = tmp_path / name.replace("/", "--")
        directory.mkdir()
        shutil.copy(models_in_box()["minnow" if "draft" in name else "perch"] / "config.json", directory)
        return str(directory)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    drafter = {"method": "draft_model", "model": "somebody/draft"}
    found = of(model="somebody/tiny", speculative_config=drafter)
    assert wanted == {"somebody/tiny": ["config.json"], "somebody/draft": ["config.json"]}
    assert found.fit == of(speculative_config={"method": "draft_model"}).fit and found.draft_weights > 0


def test_a_head_that_is_not_here_is_not_guessed_at(tmp_path: Path) -> None:
    shutil.copy(PERCH / "eagle" / "config.json", tmp_path)
    with pytest.raises(ConfigError, match="a head is as large as its files, which are not here"):
        of(speculative_config={"method": "eagle", "model": str(tmp_path)})
    with pytest.raises(ModelNotFound, match=r"config\.json is a file; give the directory"):
        of(speculative_config={"method": "draft_model", "model": str(tmp_path / "config.json")})


def test_a_gpu_that_is_not_here_can_be_planned_for() -> None:
    config = EngineConfig(device="cuda", quantization="fp8")
    found = estimate(config, 24 << 30)
    assert (found.device, found.available, found.usable) == ("cuda", 24 << 30, int((24 << 30) * 0.9))
    assert found.fit is not None and found.weights < of().weights
    with pytest.raises(ConfigError, match="say with --memory how much to plan for"):
        estimate(config)
    with pytest.raises(ConfigError, match="--kv-cache-dtype int8 is not for a model of bfloat16 on a GPU"):
        estimate(EngineConfig(device="cuda", kv_cache_dtype="int8"), 24 << 30)


def test_the_memory_of_another_machine_counts_alone() -> None:
    assert estimate(EngineConfig(threads=1), 1 << 20).fit is None
    found = estimate(EngineConfig(threads=1), 1 << 40)
    assert found.fit is not None and found.fit.num_requests == found.max_num_seqs


def test_models_that_cannot_be_estimated(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="not in the hub cache"):
        of(model="somebody/nothing")
    with pytest.raises(ModelNotFound, match=r"has no config\.json"):
        of(model=str(tmp_path))
    change_config(tmp_path, model_type="mamba")
    with pytest.raises(UnsupportedModel, match="model type 'mamba' is not supported"):
        of(model=str(tmp_path))
    change_config(tmp_path, **CONFIG)
    with pytest.raises(ConfigError, match="--max-num-batched-tokens 1 is less than --max-num-seqs 2"):
        of(model=str(tmp_path), max_num_batched_tokens=1, max_num_seqs=2)
