"""Turns what was asked for into what will run. Pure: facts about model and machine come in as arguments."""

from dataclasses import dataclass, fields

from archerfish.config.settings import Batching, EngineConfig, LoadFormat
from archerfish.errors import ConfigError

_CPU_STEP_TOKENS = 512  # A longer step would hold up every running answer for seconds.
_GPU_STEP_TOKENS = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What resolving needs to know of the model and the machine."""

    max_positions: int
    """Longest context the model was trained for."""
    checkpoint_dtype: str | None
    """Number format config.json names."""
    can_extend: bool
    """The position encoding has a meaning beyond max_positions."""
    has_cuda: bool
    num_cores: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedConfig:
    """Concrete settings, no "auto" left. The names are those of EngineConfig."""

    load_format: LoadFormat
    dtype: str
    seed: int
    max_model_len: int
    device: str
    threads: int
    block_size: int
    enable_prefix_caching: bool
    gpu_memory_utilization: float
    kv_cache_memory_bytes: int | None
    max_num_seqs: int
    max_num_batched_tokens: int
    batching: Batching
    batch_window_ms: float
    check_invariants: bool


def resolve(config: EngineConfig, facts: Facts) -> ResolvedConfig:
    """Concrete settings, or a ConfigError that names the field and a value that works."""
    device = _device(config, facts)
    on_cpu = device == "cpu"
    chosen = {
        "device": device,
        "dtype": _dtype(config, facts, on_cpu=on_cpu),
        "max_model_len": _max_model_len(config, facts),
        "threads": config.threads or facts.num_cores,
        "gpu_memory_utilization": config.gpu_memory_utilization or (0.5 if on_cpu else 0.9),
        "max_num_batched_tokens": config.max_num_batched_tokens or (_CPU_STEP_TOKENS if on_cpu else _GPU_STEP_TOKENS),
    }
    given = {f.name: getattr(config, f.name) for f in fields(ResolvedConfig)}
    resolved = ResolvedConfig(**{**given, **chosen})
    _check(resolved)
    return resolved


def _device(config: EngineConfig, facts: Facts) -> str:
    if config.device == "auto":
        return "cuda" if facts.has_cuda else "cpu"
    if config.device == "cuda" and not facts.has_cuda:
        raise ConfigError("--device cuda: torch sees no CUDA device here; use --device cpu")
    return config.device


def _dtype(config: EngineConfig, facts: Facts, *, on_cpu: bool) -> str:
    if config.dtype != "auto":
        return config.dtype
    dtype = facts.checkpoint_dtype or "float32"
    if dtype not in ("float32", "bfloat16", "float16"):
        raise ConfigError(f"the checkpoint says dtype {dtype!r}; choose --dtype float32, bfloat16 or float16")
    # bfloat16 would drop three bits of every float16 weight: float32 is the nearest format that loses nothing.
    return "float32" if on_cpu and dtype == "float16" else dtype


def _max_model_len(config: EngineConfig, facts: Facts) -> int:
    length = config.max_model_len
    if length is None:
        return facts.max_positions
    if length > facts.max_positions and not facts.can_extend:
        raise ConfigError(
            f"--max-model-len {length} is more than the {facts.max_positions} positions the model knows; "
            f"use --max-model-len {facts.max_positions} or less"
        )
    return length


def _check(config: ResolvedConfig) -> None:
    for name, least in (
        ("seed", 0),
        ("max_model_len", 2),
        ("threads", 1),
        ("block_size", 1),
        ("max_num_seqs", 1),
        ("max_num_batched_tokens", 1),
    ):
        if getattr(config, name) < least:
            raise ConfigError(f"--{name.replace('_', '-')} {getattr(config, name)}: it must be at least {least}")
    if not 0 < config.gpu_memory_utilization <= 1:
        raise ConfigError(f"--gpu-memory-utilization {config.gpu_memory_utilization}: it must be above 0 and at most 1")
    if config.max_num_batched_tokens < config.max_num_seqs:
        raise ConfigError(
            f"--max-num-batched-tokens {config.max_num_batched_tokens} is less than --max-num-seqs "
            f"{config.max_num_seqs}: not every running sequence could get a token in a step; "
            f"use --max-num-seqs {config.max_num_batched_tokens} or a larger step"
        )
    if config.batch_window_ms < 0:
        raise ConfigError(f"--batch-window-ms {config.batch_window_ms}: it must be 0 or more")
