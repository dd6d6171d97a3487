"""Turns what was asked for into what will run. Pure: facts about model and machine come in as arguments."""

from dataclasses import dataclass, fields
from typing import Any

from archerfish.config.settings import Batching, EngineConfig, Kernels, LoadFormat, Quantization, Rounding, flag_name
from archerfish.config.speculation import MODEL_FREE_METHODS, NON_SPECULATIVE_METHODS, SpeculationConfig
from archerfish.errors import ConfigError

_CPU_STEP_TOKENS = 512  # A longer step would hold up every running answer for seconds.
_GPU_STEP_TOKENS = 8192
_NUM_SEQUENCES = 256
_SAMPLED_WITH_DRAFTS = 64
_MOST_THREADS = 4096
"""More than any machine has cores for."""

MOST_CALIBRATED_PARAMETERS = 200_000_000
"""Of models that int4 calibrates unasked: it takes a fifth of a second of a core for each million."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolveFacts:
    """What resolving needs to know of the model and the machine."""

    max_positions: int
    """Longest context the model was trained for."""
    checkpoint_dtype: str | None
    """Number format config.json names."""
    can_extend: bool
    """The position encoding has a meaning beyond max_positions."""
    has_cuda: bool
    num_cores: int
    num_parameters: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedConfig:
    """Concrete settings, no "auto" left. The names are those of EngineConfig."""

    load_format: LoadFormat
    dtype: str
    quantization: Quantization
    quantization_group: int
    quantization_zero_points: bool
    quantization_rounding: Rounding
    seed: int
    max_model_len: int
    device: str
    threads: int
    kernels: Kernels
    block_size: int
    enable_prefix_caching: bool
    gpu_memory_utilization: float
    kv_cache_dtype: str
    kv_cache_memory_bytes: int | None
    max_num_seqs: int
    max_num_batched_tokens: int
    speculation: SpeculationConfig
    batching: Batching
    batch_window_ms: float
    check_invariants: bool

    @property
    def speculates(self) -> bool:
        """Whether anything is drafted. Auto drafts nothing on a GPU, where no measurement shows yet that it pays."""
        method = self.speculation.method
        return method != "off" and (method != "auto" or self.device == "cpu")

    @property
    def speculation_methods(self) -> tuple[str, ...]:
        """What a request may choose from, beside what has weights of its own."""
        return (*NON_SPECULATIVE_METHODS, *MODEL_FREE_METHODS) if self.speculates else NON_SPECULATIVE_METHODS

    @property
    def max_drawn(self) -> int:
        """Maximum tokens that a step samples: one for each sequence, and one after each draft token."""
        if not self.speculates:
            return self.max_num_seqs
        return max(self.max_num_seqs, min(_SAMPLED_WITH_DRAFTS, self.max_num_batched_tokens))


def resolve(config: EngineConfig, facts: ResolveFacts) -> ResolvedConfig:
    """Concrete settings, or a ConfigError that names the field and a value that works."""
    device = _device(config, facts)
    on_cpu = device == "cpu"
    dtype = _dtype(config, facts, on_cpu=on_cpu)
    chosen: dict[str, Any] = {
        "device": device,
        "dtype": dtype,
        "kv_cache_dtype": dtype if config.kv_cache_dtype == "auto" else config.kv_cache_dtype,
        "max_model_len": _max_model_len(config, facts),
        "quantization_rounding": _rounding(config, facts, on_cpu=on_cpu),
        "speculation": _speculation(config),
    }
    given = {f.name: getattr(config, f.name, None) for f in fields(ResolvedConfig)}
    # Only None stands for the default: a 0 is a value, to be refused where it cannot work.
    step_tokens = _CPU_STEP_TOKENS if on_cpu else _GPU_STEP_TOKENS
    default = {
        "threads": facts.num_cores,
        "gpu_memory_utilization": 0.5 if on_cpu else 0.9,
        # Every running sequence needs a token in a step: what was not set follows what was.
        "max_num_batched_tokens": max(step_tokens, config.max_num_seqs or 0),
        "max_num_seqs": min(_NUM_SEQUENCES, max(1, config.max_num_batched_tokens or _NUM_SEQUENCES)),
    }
    filled = {name: value for name, value in default.items() if given[name] is None}
    resolved = ResolvedConfig(**{**given, **filled, **chosen})
    _check(resolved)
    return resolved


def _device(config: EngineConfig, facts: ResolveFacts) -> str:
    if config.device == "auto":
        return "cuda" if facts.has_cuda else "cpu"
    if config.device == "cuda" and not facts.has_cuda:
        flag = flag_name("device")
        raise ConfigError(f"{flag} cuda: torch sees no CUDA device here; use {flag} cpu")
    return config.device


def _dtype(config: EngineConfig, facts: ResolveFacts, *, on_cpu: bool) -> str:
    if config.dtype != "auto":
        return config.dtype
    dtype = facts.checkpoint_dtype or "float32"
    if dtype not in ("float32", "bfloat16", "float16"):
        raise ConfigError(
            f"the checkpoint says dtype {dtype!r}; choose {flag_name('dtype')} float32, bfloat16 or float16"
        )
    # bfloat16 would drop three bits of every float16 weight: float32 is the nearest format that loses nothing.
    return "float32" if on_cpu and dtype == "float16" else dtype


def _rounding(config: EngineConfig, facts: ResolveFacts, *, on_cpu: bool) -> Rounding:
    if config.quantization != "int4":
        if config.quantization_rounding != "auto":
            rounding, kind = flag_name("quantization_rounding"), flag_name("quantization")
            raise ConfigError(f"{rounding} belongs to {kind} int4, not to {config.quantization}")
        return "nearest"
    if not on_cpu:
        if config.quantization_rounding == "calibrated":
            rounding, device = flag_name("quantization_rounding"), flag_name("device")
            raise ConfigError(f"{rounding} calibrated needs a CPU; use {rounding} nearest, or {device} cpu")
        return "nearest"
    if config.quantization_rounding != "auto":
        return config.quantization_rounding
    # Random weights lose nothing by rounding.
    is_worth_it = config.load_format != "dummy" and facts.num_parameters <= MOST_CALIBRATED_PARAMETERS
    return "calibrated" if is_worth_it else "nearest"


def _speculation(config: EngineConfig) -> SpeculationConfig:
    """Read how to speculate. Random weights repeat themselves, which copies predict: off there unless configured."""
    if config.load_format == "dummy" and not config.speculative_config:
        return SpeculationConfig(method="off")
    return SpeculationConfig.read(config.speculative_config)


def _max_model_len(config: EngineConfig, facts: ResolveFacts) -> int:
    length = config.max_model_len
    if length is None:
        return facts.max_positions
    if length > facts.max_positions and not facts.can_extend:
        flag = flag_name("max_model_len")
        raise ConfigError(
            f"{flag} {length} is more than the {facts.max_positions} positions the model knows; "
            f"use {flag} {facts.max_positions} or less"
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
        ("batch_window_ms", 0),
    ):
        value = getattr(config, name)
        if value < least:
            raise ConfigError(f"{flag_name(name)} {value}: it must be at least {least}")
    if config.threads > _MOST_THREADS:
        raise ConfigError(f"{flag_name('threads')} {config.threads}: it must be at most {_MOST_THREADS}")
    if config.quantization_group not in (32, 64, 128):
        raise ConfigError(
            f"{flag_name('quantization_group')} {config.quantization_group}: groups have 32, 64 or 128 weights"
        )
    if config.quantization != "int4" and (config.quantization_group != 64 or config.quantization_zero_points):
        groups = f"{flag_name('quantization_group')} and {flag_name('quantization_zero_points')}"
        raise ConfigError(f"{groups} belong to {flag_name('quantization')} int4, not to {config.quantization}")
    if not 0 < config.gpu_memory_utilization <= 1:
        raise ConfigError(
            f"{flag_name('gpu_memory_utilization')} {config.gpu_memory_utilization}: it must be above 0 and at most 1"
        )
    if config.max_num_batched_tokens < config.max_num_seqs:
        step, seqs = flag_name("max_num_batched_tokens"), flag_name("max_num_seqs")
        raise ConfigError(
            f"{step} {config.max_num_batched_tokens} is less than {seqs} {config.max_num_seqs}: "
            f"not every running sequence could get a token in a step; "
            f"use {seqs} {config.max_num_batched_tokens} or a larger step"
        )
