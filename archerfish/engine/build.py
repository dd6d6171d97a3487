"""The only place that assembles an engine: settings in, everything connected out."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from archerfish.arch.arch import Arch
from archerfish.arch.cost import step_cost
from archerfish.config.resolve import ResolvedConfig, resolve
from archerfish.config.settings import EngineConfig
from archerfish.console import logger
from archerfish.engine.calibration_samples import calibration_texts
from archerfish.engine.engine import Engine
from archerfish.engine.factory.cache_size import as_does_not_fit, size_cache
from archerfish.engine.factory.drafters import choose_drafter, with_named_method
from archerfish.engine.factory.kernels import choose_kernels
from archerfish.engine.factory.loaded_model import load_model
from archerfish.engine.factory.scheduler import build_scheduler
from archerfish.engine.factory.text import read_text_settings
from archerfish.engine.footprint import bytes_per_kv_value, bytes_per_weight, footprint, free_memory
from archerfish.engine.input_processor import InputProcessor
from archerfish.engine.models import OnProgress, facts_of, read_checkpoint
from archerfish.execution.executor import Executor
from archerfish.execution.memory import CacheSize, MemoryBudget
from archerfish.metrics.state import EngineInfo
from archerfish.quant import KvFormat
from archerfish.sampling.grammar_cache import GrammarCache
from archerfish.sampling.row_grammars import RowGrammars
from archerfish.scheduling.scheduler import Scheduler
from archerfish.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Assembly:
    """An engine, and what its interfaces need apart from it."""

    directory: Path
    """Directory of the model's files, or its config file where that is all there is."""
    tokenizer_directory: Path | None
    engine: Engine
    executor: Executor
    """The executor that runs the engine's plans, for benchmarks that measure it alone."""
    processor: InputProcessor
    speculation_methods: tuple[str, ...]
    """Methods that a request may choose from."""
    arch: Arch
    config: ResolvedConfig
    cache_size: CacheSize
    memory: MemoryBudget
    """Memory of weights and steps, as estimated before loading."""
    recommended: Mapping[str, Any]
    """Sampling parameters that the model's makers recommend, by name."""
    start_token_id: int
    """First token of a text without a prompt."""
    embedding_sizes: tuple[int, ...] | None
    """Sizes that embeddings can be cut to, as config.json lists them; None means any size."""
    grammars: GrammarCache | None
    """Compiled grammars of answers; None without a tokenizer."""

    @property
    def info(self) -> EngineInfo:
        """Settings and sizes that decide how much a step reads."""
        config = self.config
        return EngineInfo(
            device=config.device,
            dtype=config.dtype,
            quantization=config.quantization,
            kv_cache_dtype=config.kv_cache_dtype,
            speculation=config.speculation.method,
            weight_bytes=self.memory.model_weights,
            kv_bytes_per_token=self.memory.kv_bytes_per_token(config),
        )

    @property
    def blueprint(self) -> "Blueprint":
        return Blueprint(self.directory, self.arch, self.config)


class Blueprint(NamedTuple):
    """A model and the settings it would run with."""

    directory: Path
    arch: Arch
    config: ResolvedConfig


def build(config: EngineConfig, on_progress: OnProgress = lambda _: None) -> Assembly:
    """Load the model and connect everything. Every error a user can fix is raised before weights are read."""
    checkpoint = read_checkpoint(config)
    resolved = with_named_method(resolve(config, facts_of(checkpoint)))
    text = read_text_settings(config, resolved, checkpoint)
    kernels = choose_kernels(checkpoint.arch, resolved)
    # Next to native threads, torch's own would only have to be woken for the little that is left to them.
    torch.set_num_threads(resolved.threads if kernels.native is None else 1)
    drafter = choose_drafter(config, resolved, checkpoint, kernels)
    drafter_memory = None if drafter is None else drafter.memory
    memory = footprint(checkpoint.arch, resolved, kernels, drafter_memory, free_memory(resolved.device))
    memory.size_cache(resolved)  # Refuses a model that does not fit.
    texts = calibration_texts(config, resolved, build)
    with as_does_not_fit(memory, resolved):
        model = load_model(checkpoint, resolved, kernels, drafter, on_progress, texts)
    cache_size = size_cache(memory, resolved, model, text.recommended)
    grammars = None
    if text.tokenizer is not None:
        grammars = GrammarCache(text.tokenizer, checkpoint.arch.vocab_size, text.eos_token_ids)
    with as_does_not_fit(memory, resolved):
        executor = model.build_executor(cache_size.num_blocks, None if grammars is None else RowGrammars(grammars))
    scheduler = build_scheduler(resolved, model.layout, cache_size, text.eos_token_ids, executor.max_draft_tokens)
    methods = (*resolved.speculation_methods, *(() if drafter is None else (drafter.method,)))
    logger.info("%s, %s", cache_size, KvFormat(resolved.kv_cache_dtype, resolved.dtype))
    return Assembly(
        directory=checkpoint.directory,
        tokenizer_directory=text.tokenizer_directory,
        engine=_engine(checkpoint.arch, resolved, scheduler, executor),
        executor=executor,
        processor=_processor(checkpoint.arch, resolved, text.tokenizer, methods),
        speculation_methods=methods,
        arch=checkpoint.arch,
        config=resolved,
        cache_size=cache_size,
        memory=memory,
        recommended=text.recommended,
        start_token_id=text.start_token_id,
        embedding_sizes=text.embedding_sizes,
        grammars=grammars,
    )


def examine(config: EngineConfig) -> Blueprint:
    """Return what `build` would build, without reading weights; with load_format dummy none are downloaded."""
    checkpoint = read_checkpoint(config)
    return Blueprint(checkpoint.directory, checkpoint.arch, resolve(config, facts_of(checkpoint)))


def _engine(arch: Arch, config: ResolvedConfig, scheduler: Scheduler, executor: Executor) -> Engine:
    cost = step_cost(arch, bytes_per_weight(arch, config), bytes_per_kv_value(arch, config))
    return Engine(scheduler, executor, time.monotonic, cost=cost, check_invariants=config.check_invariants)


def _processor(
    arch: Arch, config: ResolvedConfig, tokenizer: Tokenizer | None, methods: tuple[str, ...]
) -> InputProcessor:
    longest = None if arch.can_extend_positions else arch.max_positions
    return InputProcessor(tokenizer, arch.vocab_size, config.max_model_len, time.monotonic, longest, methods)
