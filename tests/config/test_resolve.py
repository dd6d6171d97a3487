"""What settings come to on a machine: only None is filled in, and what cannot work is refused by its flag."""

from typing import Any

import pytest

from archerfish.config.resolve import ResolvedConfig, ResolveFacts, resolve
from archerfish.config.settings import EngineConfig
from archerfish.errors import ConfigError


def resolved(
    *, has_cuda: bool = False, checkpoint_dtype: str = "bfloat16", num_parameters: int = 1_000_000, **settings: Any
) -> ResolvedConfig:
    facts = ResolveFacts(
        max_positions=4096,
        checkpoint_dtype=checkpoint_dtype,
        can_extend=False,
        has_cuda=has_cuda,
        num_cores=6,
        num_parameters=num_parameters,
    )
    return resolve(EngineConfig(**settings), facts)


def test_what_is_not_set_is_chosen_by_the_machine() -> None:
    cpu, gpu = resolved(), resolved(has_cuda=True)
    assert (cpu.device, cpu.threads, cpu.gpu_memory_utilization, cpu.max_num_batched_tokens) == ("cpu", 6, 0.5, 512)
    assert (gpu.device, gpu.threads, gpu.gpu_memory_utilization, gpu.max_num_batched_tokens) == ("cuda", 6, 0.9, 8192)


def test_what_a_request_may_choose_is_what_the_engine_has() -> None:
    every = ("off", "auto", "suffix", "lookahead")
    assert resolved().speculation_methods == every
    assert resolved(has_cuda=True).speculation_methods == ("off", "auto"), "auto guesses nothing there"
    assert resolved(has_cuda=True, speculative_config={"method": "lookahead"}).speculates
    off = resolved(speculative_config={"method": "off"})
    assert not off.speculates and off.speculation_methods == ("off", "auto")


def test_random_weights_are_measured_without_speculation_unless_it_is_configured() -> None:
    assert resolved(load_format="dummy").speculation.method == "off"
    assert resolved(load_format="dummy", speculative_config={"method": "auto"}).speculates
    assert resolved().speculation.method == "auto"


@pytest.mark.parametrize(
    ("settings", "num_parameters", "rounding"),
    [
        ({"quantization": "int4"}, 200_000_000, "calibrated"),
        ({"quantization": "int4"}, 200_000_001, "nearest"),
        ({"quantization": "int4", "load_format": "dummy"}, 1_000, "nearest"),
        ({"quantization": "int4", "quantization_rounding": "nearest"}, 1_000, "nearest"),
        ({"quantization": "int4", "quantization_rounding": "calibrated"}, 70_000_000_000, "calibrated"),
        ({"quantization": "int8"}, 1_000, "nearest"),
    ],
)
def test_small_models_are_calibrated_unasked(settings: dict[str, Any], num_parameters: int, rounding: str) -> None:
    assert resolved(num_parameters=num_parameters, **settings).quantization_rounding == rounding


def test_what_is_set_stays() -> None:
    config = resolved(threads=2, gpu_memory_utilization=0.25, max_num_batched_tokens=300, batch_window_ms=0.0)
    assert (config.threads, config.gpu_memory_utilization, config.max_num_batched_tokens) == (2, 0.25, 300)
    assert config.batch_window_ms == 0


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"threads": 0}, "--threads 0: it must be at least 1"),
        ({"threads": 10**6}, "--threads 1000000: it must be at most 4096"),
        (
            {"quantization": "int8", "quantization_rounding": "nearest"},
            "--quantization-rounding belongs to --quantization int4, not to int8",
        ),
        ({"gpu_memory_utilization": 0.0}, "--gpu-memory-utilization 0.0: it must be above 0 and at most 1"),
        ({"gpu_memory_utilization": 1.5}, "--gpu-memory-utilization 1.5: it must be above 0"),
        ({"max_num_batched_tokens": 0}, "--max-num-batched-tokens 0: it must be at least 1"),
        ({"max_num_batched_tokens": 8, "max_num_seqs": 9}, "--max-num-batched-tokens 8 is less than --max-num-seqs 9"),
        ({"max_model_len": 0}, "--max-model-len 0: it must be at least 2"),
        ({"max_model_len": 5000}, "use --max-model-len 4096 or less"),
        ({"batch_window_ms": -1.0}, "--batch-window-ms -1.0: it must be at least 0"),
        ({"device": "cuda"}, "--device cuda: torch sees no CUDA device here; use --device cpu"),
        ({"checkpoint_dtype": "float8"}, "choose --dtype float32, bfloat16 or float16"),
    ],
)
def test_what_cannot_work_is_refused_by_its_flag(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        resolved(**settings)
    assert says in str(refusal.value)


def test_the_cache_has_the_models_numbers_unless_it_is_told_otherwise() -> None:
    assert resolved().kv_cache_dtype == "bfloat16"
    assert resolved(checkpoint_dtype="float16").kv_cache_dtype == "float32", "as the model on a CPU"
    assert resolved(dtype="float32").kv_cache_dtype == "float32"
    assert resolved(dtype="float32", kv_cache_dtype="bfloat16").kv_cache_dtype == "bfloat16"
    assert resolved(kv_cache_dtype="int8").kv_cache_dtype == "int8"


def test_steps_and_sequences_follow_each_other_where_only_one_is_set() -> None:
    assert resolved().max_num_seqs == 256
    assert resolved(max_num_batched_tokens=100).max_num_seqs == 100
    assert resolved(max_num_seqs=1000).max_num_batched_tokens == 1000
    assert resolved(max_num_seqs=8).max_num_batched_tokens == 512
