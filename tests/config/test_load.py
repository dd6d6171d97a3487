"""Where settings come from, which source wins, and what is refused."""

import re
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pytest

from archerfish import LLM
from archerfish.config.load import ENVIRONMENT_PREFIX, check_settings, field_docs, load_config, read_flags
from archerfish.config.settings import EngineConfig, flag_name
from archerfish.errors import ConfigError
from archerfish.request import SamplingParams


def from_file(tmp_path: Path, text: str) -> EngineConfig:
    path = tmp_path / "engine.toml"
    path.write_text(text)
    return load_config(EngineConfig, {}, path, {})


@pytest.mark.parametrize("record", [EngineConfig, SamplingParams])
def test_every_field_is_documented(record: type) -> None:
    docs = field_docs(record)
    assert [f.name for f in fields(record)] == list(docs)
    assert all(text and "\n" not in text for text in docs.values())


def test_docs_leave_out_fields_without_one() -> None:
    @dataclass
    class Record:
        silent: int = 0
        spoken: int = 1
        """Text over
        two lines."""

    assert field_docs(Record) == {"spoken": "Text over two lines."}


def test_without_sources_everything_is_default() -> None:
    assert load_config(EngineConfig, {}, None, {}) == EngineConfig()


def test_flags_go_before_environment_before_file_before_defaults(tmp_path: Path) -> None:
    path = tmp_path / "engine.toml"
    path.write_text("block_size = 1\nseed = 1\nmax-num-seqs = 1\n")
    environ = {"ARCHERFISH_SEED": "2", "ARCHERFISH_MAX_NUM_SEQS": "2", "UNRELATED": "2"}
    config = load_config(EngineConfig, {"max_num_seqs": "3", "threads": None}, path, environ)
    assert (config.block_size, config.seed, config.max_num_seqs, config.threads) == (1, 2, 3, None)
    assert config.batch_window_ms == EngineConfig().batch_window_ms


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("max_model_len", "4096", 4096),
        ("max_model_len", "1k", 1000),
        ("max_model_len", "1K", 1024),
        ("max_model_len", "25.6k", 25600),
        ("max_model_len", "None", None),
        ("kv_cache_memory_bytes", "2G", 2 << 30),
        ("gpu_memory_utilization", "0.75", 0.75),
        ("batch_window_ms", "5", 5.0),
        ("dtype", "bfloat16", "bfloat16"),
        ("enable_prefix_caching", "False", False),
        ("check_invariants", "on", True),
        ("hf_overrides", '{"rope_theta": null}', {"rope_theta": None}),
        ("model", "none", "none"),
    ],
)
def test_text_is_read_alike_from_flags_and_environment(name: str, text: str, value: object) -> None:
    assert getattr(load_config(EngineConfig, {name: text}, None, {}), name) == value
    assert getattr(load_config(EngineConfig, {}, None, {ENVIRONMENT_PREFIX + name.upper(): text}), name) == value


def test_a_file_may_use_its_own_types(tmp_path: Path) -> None:
    config = from_file(
        tmp_path,
        'model = "m"\nmax-model-len = "2K"\nblock_size = 32\nbatch-window-ms = 10\ncheck_invariants = true\n'
        "[hf-overrides]\nrope_theta = 5.0\n",
    )
    assert config == EngineConfig(
        model="m",
        max_model_len=2048,
        block_size=32,
        batch_window_ms=10.0,
        check_invariants=True,
        hf_overrides={"rope_theta": 5.0},
    )


def test_an_empty_variable_is_not_set() -> None:
    assert load_config(EngineConfig, {}, None, {"ARCHERFISH_THREADS": "", "ARCHERFISH_NONSENSE": ""}) == EngineConfig()


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("max_model_len", "12x", "whole number"),
        ("max_model_len", "1.5", "whole number"),
        ("max_model_len", "1.0e999", ""),
        ("gpu_memory_utilization", "much", "is not a number"),
        ("gpu_memory_utilization", "nan", "is not a number"),
        ("dtype", "int3", "auto, float32, bfloat16, float16"),
        ("device", "tpu", "auto, cpu, cuda"),
        ("enable_prefix_caching", "maybe", "neither true nor false"),
        ("hf_overrides", "{", "JSON"),
        ("hf_overrides", "[1]", "JSON object"),
    ],
)
def test_a_bad_value_names_its_source_and_what_is_allowed(name: str, text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=f"^{flag_name(name)}: .*{says}"):
        load_config(EngineConfig, {name: text}, None, {})
    with pytest.raises(ConfigError, match=f"^ARCHERFISH_{name.upper()}: .*{says}"):
        load_config(EngineConfig, {}, None, {ENVIRONMENT_PREFIX + name.upper(): text})


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("max_model_length = 1", "max_model_length in .*engine.toml is not a setting; did you mean max_model_len"),
        ("tensor_parallel_size = 2", "tensor_parallel_size = 2 in .*engine.toml: Archerfish runs a model on one"),
        ("ctx_size = 2", "ctx_size = 2 in .*engine.toml: use max_model_len"),
        ("zzz = 1", "zzz in .* is not a setting; archerfish serve --help lists all settings"),
        ("[engine]\nseed = 1", "engine in .* is not a setting"),
        ("seed = 1.5", "seed in .*: 1.5 is not a whole number"),
        ("seed = true", "seed in .*: True is not a whole number"),
        ("batch_window_ms = true", "True is not a number"),
        ("check_invariants = 1", "neither true nor false"),
        ("model = 1", "model in .*: 1 is not a text"),
        ("dtype = 16", "16 is not one of"),
        ("block_size = 1\nblock-size = 2", "twice"),
        ("seed =", "not valid TOML"),
    ],
)
def test_a_bad_file_is_refused_by_name(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        from_file(tmp_path, text)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read the configuration file .*missing\.toml: No such file"):
        load_config(EngineConfig, {}, tmp_path / "missing.toml", {})
    (tmp_path / "latin.toml").write_bytes(b'model = "\xff"')
    with pytest.raises(ConfigError, match="not UTF-8"):
        load_config(EngineConfig, {}, tmp_path / "latin.toml", {})


def test_an_unknown_variable_or_flag_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="BLOCK_SIZES is not a setting; did you mean ARCHERFISH_BLOCK_SIZE"):
        load_config(EngineConfig, {}, None, {"ARCHERFISH_BLOCK_SIZES": "1"})
    with pytest.raises(ConfigError, match="--block-sizes is not a setting; did you mean --block-size"):
        load_config(EngineConfig, {"block_sizes": 1}, None, {})


def test_flags_are_spelled_with_hyphens() -> None:
    assert flag_name("max_model_len") == "--max-model-len"


def test_settings_from_python_are_converted_like_flags(tmp_path: Path) -> None:
    given = {"model": tmp_path, "max_model_len": "4K", "threads": 2, "seed": None, "hf_overrides": {"a": None}}
    assert check_settings(given) == EngineConfig(
        model=str(tmp_path), max_model_len=4096, threads=2, hf_overrides={"a": None}
    )


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("dtype", "bf16", "'bf16' is not one of auto, float32, bfloat16, float16"),
        ("max_model_len", "long", "'long' is not a whole number"),
        ("max_model_len", 12.5, "12.5 is not a whole number"),
        ("batching", "foo", "'foo' is not one of continuous, dynamic, static"),
        ("device", "cuda:1", "'cuda:1' is not one of auto, cpu, cuda"),
        ("load_format", ["auto"], "is not one of auto, dummy"),
        ("gpu_memory_utilization", "much", "is not a number"),
        ("hf_overrides", [1], "is not a JSON object"),
        ("model", 7, "7 is not a text"),
        ("max_model_length", 3, "is not a setting; did you mean max_model_len?"),
    ],
)
def test_a_bad_setting_is_named_before_anything_is_loaded(name: str, value: object, says: str) -> None:
    with pytest.raises(ConfigError, match=f"^{name}:? .*{re.escape(says)}"):
        # There is no such model: looking for it would be another error.
        LLM(**{"model": "no/such/place/at/all", name: value})


@pytest.mark.parametrize(
    ("name", "value", "read"),
    [
        ("stop_token_ids", "1,2, 3", (1, 2, 3)),
        ("allowed_token_ids", "7", (7,)),
        ("stop", ("a,b", "c"), ("a,b", "c")),
        ("logit_bias", '{"5": -1}', {5: -1.0}),
        ("max_tokens", "none", None),
    ],
)
def test_flags_of_other_records_are_read_by_their_types(name: str, value: Any, read: object) -> None:
    assert read_flags(SamplingParams, {name: value}) == {name: read}


@pytest.mark.parametrize(
    ("name", "value"), [("stop_token_ids", "1,x"), ("logit_bias", '{"a": 1}'), ("logit_bias", '{"1": "x"}')]
)
def test_bad_items_of_a_list_or_object_are_refused(name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=f"^{flag_name(name)}: '[ax]' is not a"):
        read_flags(SamplingParams, {name: value})
