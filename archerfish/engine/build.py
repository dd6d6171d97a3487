"""The only place that assembles an engine: settings in, everything connected out."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from archerfish.arch.arch import Arch
from archerfish.arch.cost import step_cost
from archerfish.config.compatibility import shown_value
from archerfish.config.resolve import ResolvedConfig, resolve
from archerfish.config.settings import EngineConfig
from archerfish.console import logger
from archerfish.engine.calibration_samples import calibration_texts
from archerfish.engine.engine import Engine
from archerfish.engine.factory.drafters import choose_drafter, with_named_method
from archerfish.engine.factory.executors import build_executor, profile_stage
from archerfish.engine.factory.kernels import choose_kernels
from archerfish.engine.factory.speculation import DrafterFactory
from archerfish.engine.footprint import bytes_per_kv_value, bytes_per_weight, footprint, free_memory
from archerfish.engine.input_processor import InputProcessor
from archerfish.engine.models import (
    Checkpoint,
    OnProgress,
    build_model,
    facts_of,
    read_checkpoint,
)
from archerfish.engine.sizing import measured_size, refusing
from archerfish.errors import InvalidParameter, ModelError
from archerfish.execution.executor import Executor
from archerfish.execution.memory import CacheSize, MemoryBudget
from archerfish.kvcache.layout import KVLayout, kv_layout
from archerfish.kvcache.storage import KVStorage
from archerfish.kvcache.tables import KVTables
from archerfish.machine.memory import trim_heap
from archerfish.metrics.state import EngineInfo
from archerfish.ops import torch_dtype
from archerfish.quant import KvFormat
from archerfish.request import SamplingParams
from archerfish.sampling.grammar_cache import GrammarCache
from archerfish.sampling.row_grammars import RowGrammars
from archerfish.scheduling.policy import batching_policy
from archerfish.scheduling.scheduler import Limits, Scheduler
from archerfish.tokenizer import Tokenizer
from archerfish.weights.locate import locate


@dataclass(frozen=True, slots=True)
class Assembly:
    """An engine and what its faces need beside it."""

    directory: Path
    """Of the model's files; a config file, where that is all there is."""
    tokenizer_directory: Path | None
    engine: Engine
    executor: Executor
    """The executor that runs the engine's plans, for benchmarks that measure it alone."""
    processor: InputProcessor
    speculation_methods: tuple[str, ...]
    """What a request may choose from."""
    arch: Arch
    config: ResolvedConfig
    cache_size: CacheSize
    memory: MemoryBudget
    """What weights and steps take, as estimated before loading."""
    recommended: Mapping[str, Any]
    """Sampling parameters that the model's makers recommend, by name."""
    start_token_id: int
    """What a text begins with."""
    embedding_sizes: tuple[int, ...] | None
    """What embeddings can be cut to, as config.json says of models trained for it; None is any size."""
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
    generation_path = checkpoint.directory / "generation_config.json"
    recommended = _recommended(checkpoint.generation, generation_path, resolved.max_model_len)
    tokenizer_directory = _tokenizer_directory(config, checkpoint)
    tokenizer = None if tokenizer_directory is None else Tokenizer.load(tokenizer_directory, config.chat_template)
    eos_token_ids = _eos_token_ids(checkpoint, tokenizer)
    kernels = choose_kernels(checkpoint.arch, resolved)
    # Beside native threads torch's would only have to be woken for what little it still does.
    torch.set_num_threads(resolved.threads if kernels.native is None else 1)
    layout = kv_layout(checkpoint.arch)
    drafter = choose_drafter(config, resolved, checkpoint, kernels)
    drafter_memory = None if drafter is None else drafter.memory
    memory = footprint(checkpoint.arch, resolved, kernels, drafter_memory, free_memory(resolved.device))
    cache_size = memory.size_cache(resolved)
    texts = calibration_texts(config, resolved, build)
    before = _allocated(resolved.device)
    with refusing(memory, resolved):
        decoder = build_model(checkpoint, resolved, kernels, on_progress, texts)
        make_drafter = None if drafter is None else drafter.load(decoder)
    trim_heap()
    kv_dtype = torch_dtype(resolved.kv_cache_dtype)

    def executor_of(num_blocks: int, grammars: RowGrammars | None = None) -> Executor:
        storage = KVStorage(layout, num_blocks, resolved.block_size, kv_dtype, resolved.device, kernels.ops)
        factory = None
        if drafter is not None and make_drafter is not None:
            factory = DrafterFactory(partial(make_drafter, num_blocks), drafter.aux_layers)
        return build_executor(kernels, decoder, storage, resolved, grammars, factory)

    if kernels.triton is not None and resolved.device == "cuda":
        num_bytes = _allocated(resolved.device) - before
        cache_size = measured_size(memory, resolved, profile_stage(executor_of), num_bytes, recommended)
    grammars = None if tokenizer is None else GrammarCache(tokenizer, checkpoint.arch.vocab_size, eos_token_ids)
    with refusing(memory, resolved):
        executor = executor_of(cache_size.num_blocks, None if grammars is None else RowGrammars(grammars))
    scheduler = _scheduler(resolved, layout, cache_size, eos_token_ids, executor.max_draft_tokens)
    methods = (*resolved.speculation_methods, *(() if drafter is None else (drafter.method,)))
    logger.info("%s, %s", cache_size, KvFormat(resolved.kv_cache_dtype, resolved.dtype))
    return Assembly(
        directory=checkpoint.directory,
        tokenizer_directory=tokenizer_directory,
        engine=Engine(
            scheduler,
            executor,
            time.monotonic,
            cost=step_cost(
                checkpoint.arch,
                bytes_per_weight(checkpoint.arch, resolved),
                bytes_per_kv_value(checkpoint.arch, resolved),
            ),
            check_invariants=resolved.check_invariants,
        ),
        executor=executor,
        processor=_processor(checkpoint, resolved, tokenizer, methods),
        speculation_methods=methods,
        arch=checkpoint.arch,
        config=resolved,
        cache_size=cache_size,
        memory=memory,
        recommended=recommended,
        embedding_sizes=_embedding_sizes(checkpoint),
        start_token_id=_start_token_id(checkpoint, eos_token_ids),
        grammars=grammars,
    )


def examine(config: EngineConfig) -> Blueprint:
    """What would be built. Reads no weights; with load_format dummy it fetches none either."""
    checkpoint = read_checkpoint(config)
    return Blueprint(checkpoint.directory, checkpoint.arch, resolve(config, facts_of(checkpoint)))


def _tokenizer_directory(config: EngineConfig, checkpoint: Checkpoint) -> Path | None:
    """None where prompts and answers are token ids."""
    if config.skip_tokenizer_init:
        return None
    if config.tokenizer is not None:
        return locate(config.tokenizer, weights=False)
    if config.load_format == "dummy" and not (checkpoint.directory / "tokenizer.json").exists():
        return None  # config.json alone is enough for random weights.
    return checkpoint.directory


def _processor(
    checkpoint: Checkpoint, config: ResolvedConfig, tokenizer: Tokenizer | None, methods: tuple[str, ...]
) -> InputProcessor:
    arch = checkpoint.arch
    longest = None if arch.can_extend_positions else arch.max_positions
    return InputProcessor(tokenizer, arch.vocab_size, config.max_model_len, time.monotonic, longest, methods)


def _allocated(device: str) -> int:
    """Return the bytes that tensors hold on the device; 0 on a CPU, where they are not counted."""
    return torch.cuda.memory_allocated() if device == "cuda" else 0


def _scheduler(
    config: ResolvedConfig, layout: KVLayout, size: CacheSize, eos: tuple[int, ...], max_draft_tokens: int | None
) -> Scheduler:
    limits = Limits(
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_model_len=config.max_model_len,
        eos_token_ids=eos,
        max_drawn=config.max_drawn,
    )
    tables = KVTables(
        size.num_blocks,
        config.block_size,
        layout.windows,
        step_tokens=config.max_num_batched_tokens,
        prefix_caching=config.enable_prefix_caching,
    )
    policy = batching_policy(config.batching, config.max_num_seqs, config.batch_window_ms / 1000)
    return Scheduler(limits, tables, policy, config.seed, max_draft_tokens=max_draft_tokens)


def _eos_token_ids(checkpoint: Checkpoint, tokenizer: Tokenizer | None) -> tuple[int, ...]:
    """Every token the model can end with, whichever file names it."""
    inner = checkpoint.config.get("text_config") or {}
    found: set[int] = set()
    for value in (
        checkpoint.generation.get("eos_token_id"),
        checkpoint.config.get("eos_token_id"),
        inner.get("eos_token_id"),
    ):
        listed = [value] if isinstance(value, int) else value or []
        if not isinstance(listed, list) or not all(isinstance(token, int) for token in listed):
            raise ModelError(
                f"{checkpoint.directory}: eos_token_id = {shown_value(value)} must be a token id or a list of them"
            )
        found.update(listed)
    if tokenizer is not None and tokenizer.eos_token_id is not None:
        found.add(tokenizer.eos_token_id)
    # Files also name tokens that the model has no row for: it never writes them, so there is nothing to bar.
    return tuple(sorted(token for token in found if 0 <= token < checkpoint.arch.vocab_size))


def _embedding_sizes(checkpoint: Checkpoint) -> tuple[int, ...] | None:
    sizes = checkpoint.config.get("matryoshka_dimensions")
    if isinstance(sizes, list):
        return tuple(size for size in sizes if isinstance(size, int) and 0 < size < checkpoint.arch.hidden_size)
    return None if checkpoint.config.get("is_matryoshka") is True else ()


def _start_token_id(checkpoint: Checkpoint, eos: tuple[int, ...]) -> int:
    """What texts begin with: the token named for it, else one that ends them, as between training texts."""
    inner = checkpoint.config.get("text_config") or {}
    named = (checkpoint.config.get("bos_token_id"), inner.get("bos_token_id"), *eos, 0)
    return next(token for token in named if isinstance(token, int) and 0 <= token < checkpoint.arch.vocab_size)


def _recommended(generation: Mapping[str, Any], path: Path, max_model_len: int) -> dict[str, Any]:
    names = {"temperature": "temperature", "top_k": "top_k", "top_p": "top_p", "min_p": "min_p"}
    names |= {"repetition_penalty": "repetition_penalty", "max_new_tokens": "max_tokens"}
    given = {ours: generation[theirs] for theirs, ours in names.items() if generation.get(theirs) is not None}
    if generation.get("do_sample") is False:
        given["temperature"] = 0.0
    try:
        SamplingParams.from_dict(given)  # A value that makes no sense shows now, not at the first request.
    except InvalidParameter as error:
        raise ModelError(f"{path}: {error}") from error
    if "max_tokens" in given:
        # Requests may not exceed the context; the file does not know how long a context is served.
        given["max_tokens"] = min(given["max_tokens"], max_model_len)
    return given
