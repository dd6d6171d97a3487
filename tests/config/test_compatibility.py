"""Settings of other engines: what asks for nothing is accepted, all else is refused with what takes its place."""

import logging
import re
from dataclasses import fields
from typing import Any

import pytest
import torch

from archerfish import LLM, AsyncEngineArgs, EngineArgs
from archerfish.config.compatibility import FOREIGN, hint
from archerfish.config.load import check_settings
from archerfish.config.settings import EngineConfig, ServerConfig, flag_name
from archerfish.errors import ConfigError
from archerfish.request import SamplingParams

OWN = {field.name for field in fields(EngineConfig)}
ALL_OWN = OWN | {field.name for record in (ServerConfig, SamplingParams) for field in fields(record)} | {"grammar"}


@pytest.mark.parametrize("name", FOREIGN)
def test_the_table_names_settings_of_others_and_sends_to_ours(name: str) -> None:
    foreign = FOREIGN[name]
    assert name not in OWN
    for ours in re.findall(r"\{(\w+)\}", foreign.instead):
        assert ours in ALL_OWN
    if foreign.means is not None:
        ours, value = foreign.means
        assert getattr(check_settings({ours: value}), ours) == value
    assert foreign.instead or foreign.takes_any or {True, False} & set(map(bool, foreign.accepted))
    assert "{" not in str(hint(name, flag_name))


QUICKSTART = {
    "tensor_parallel_size": 1,
    "pipeline_parallel_size": 1,
    "data_parallel_size": 1,
    "trust_remote_code": True,
    "enforce_eager": False,
    "enable_chunked_prefill": True,
    "disable_log_stats": False,
    "disable_log_requests": True,
    "swap_space": 4,
    "max_seq_len_to_capture": 8192,
    "tokenizer": None,
    "tokenizer_mode": "auto",
    "revision": None,
    "seed": 0,
    "download_dir": None,
    "load_format": "auto",
    "quantization": None,
    "kv_cache_dtype": "auto",
    "served_model_name": "a name",
    "enable_lora": False,
    "gpu_memory_utilization": 0.9,
    "max_model_len": 512,
    "runner": "pooling",
    "speculative_config": None,
    "compilation_config": None,
    "limit_mm_per_prompt": {},
}


def test_what_asks_for_nothing_is_accepted() -> None:
    assert check_settings(QUICKSTART) == EngineConfig(gpu_memory_utilization=0.9, max_model_len=512)


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("tensor_parallel_size", 2, "tensor_parallel_size 2: Archerfish runs a model on one device"),
        ("tensor_parallel_size", True, "tensor_parallel_size True: "),
        ("tensor_parallel_size", "2", "tensor_parallel_size 2: "),
        ("data_parallel_size", 4, "start several services"),
        ("enable_lora", True, "merge the adapter into the checkpoint"),
        ("enable_chunked_prefill", False, "max_num_batched_tokens"),
        ("swap_space", 16, "leave it out"),
        ("max_num_batched_token", 16, "did you mean max_num_batched_tokens?"),
        ("compilation_config", {"level": 3}, "use kernels reference"),
        ("generation_config", "vllm", "generation_config"),
        ("max_logprobs", 0, "as many may be asked for"),
        ("ctx_size", 4096, "ctx_size 4096: use max_model_len"),
        ("n_gpu_layers", 99, "device cuda"),
        ("context_length", 4096, "use max_model_len"),
        ("mem_fraction_static", 0.8, "use gpu_memory_utilization"),
        ("download_dir", "/models", "HF_HUB_CACHE"),
        ("quantization", "awq", "quantized already are not read"),
        ("load_format", "gguf", "only safetensors are read"),
        ("dtype", "int3", "'int3' is not one of auto, float32, bfloat16, float16"),
        ("nothing_like_it", 1, "nothing_like_it is not a setting; archerfish serve --help lists all"),
    ],
)
def test_what_asks_for_more_is_refused_in_a_sentence(name: str, value: Any, says: str) -> None:
    for make in (check_settings, lambda given: AsyncEngineArgs(**given), lambda given: LLM("no/such/place", **given)):
        with pytest.raises(ConfigError, match=re.escape(says)) as caught:
            make({name: value})
        assert len(str(caught.value)) < 250


@pytest.mark.parametrize(
    ("name", "value", "ours"),
    [
        ("dtype", "half", "float16"),
        ("dtype", "float", "float32"),
        ("dtype", torch.bfloat16, "bfloat16"),
        ("kv_cache_dtype", "fp8_e4m3", "fp8"),
        ("load_format", "safetensors", "auto"),
    ],
)
def test_values_of_ours_have_other_names_elsewhere(name: str, value: Any, ours: str) -> None:
    assert getattr(check_settings({name: value}), name) == ours


@pytest.mark.parametrize("name", ["enforce_eager", "disable_cuda_graph"])
def test_running_without_recording_is_a_setting_of_ours(name: str) -> None:
    assert check_settings({name: True}).kernels == "reference"
    assert check_settings({name: False, "kernels": "amx"}).kernels == "amx"
    assert check_settings({name: True, "kernels": "reference"}).kernels == "reference"
    with pytest.raises(ConfigError, match=rf"kernels='amx': {name} ask.* for 'reference'"):
        check_settings({name: True, "kernels": "amx"})


def test_what_is_accepted_and_changes_nothing_here_says_so(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="archerfish"):
        check_settings({"trust_remote_code": True, "served_model_name": "a"})
    assert "no code of a checkpoint is ever run" in caplog.text and "archerfish serve" in caplog.text
    caplog.clear()
    with caplog.at_level(logging.INFO, logger="archerfish"):
        check_settings({"trust_remote_code": False, "served_model_name": None})
    assert not caplog.text


def test_arguments_are_gathered_changed_and_read() -> None:
    args = EngineArgs("perch", max_model_len="1K", tensor_parallel_size=1)
    assert args.config() == EngineConfig(model="perch", max_model_len=1024)
    args.max_model_len = 512
    assert args.config().max_model_len == 512 and args.block_size == EngineConfig().block_size
    assert vars(args) == {"model": "perch", "max_model_len": 512, "tensor_parallel_size": 1}
    assert "max_model_len=512" in repr(args)
    with pytest.raises(AttributeError, match="nonsense"):
        _ = args.nonsense
    args.tensor_parallel_size = 8
    with pytest.raises(ConfigError, match="one device"):
        LLM.from_engine_args(args)
