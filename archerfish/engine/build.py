"""The only place that assembles an engine: settings in, everything connected out."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from archerfish.arch.arch import Arch
from archerfish.arch.cost import num_parameters, num_router_parameters, step_cost
from archerfish.config.resolve import Facts, ResolvedConfig, resolve
from archerfish.config.settings import EngineConfig
from archerfish.console import ProgressBar, logger
from archerfish.engine.engine import Engine
from archerfish.engine.intake import Intake
from archerfish.engine.kernels import Kernels, build_executor, choose_kernels, model_target, rehearsal_stage
from archerfish.engine.self_written import calibration_texts
from archerfish.engine.sizing import measured_size, refusing
from archerfish.errors import InvalidParameter, ModelError
from archerfish.execution.executor import Executor
from archerfish.execution.memory import CacheSize, Memory
from archerfish.kvcache.layout import KVLayout, kv_layout
from archerfish.kvcache.storage import KVStorage
from archerfish.kvcache.tables import KVTables
from archerfish.machine import available_memory, give_back_memory, num_usable_cores
from archerfish.models.decoder import Decoder
from archerfish.models.families import Family, Fields, find_family
from archerfish.ops import choose_ops, torch_dtype
from archerfish.quant import KvFormat, WeightFormat
from archerfish.request import SamplingParams
from archerfish.sampling.compiled import CompiledForms
from archerfish.sampling.grammar import Grammars
from archerfish.scheduling.policy import batching_policy
from archerfish.scheduling.scheduler import Limits, Scheduler
from archerfish.tokenizer import Tokenizer
from archerfish.weights.calibration import CalibratedPacker
from archerfish.weights.device_packing import DevicePacker
from archerfish.weights.load import Keep, load_weights, random_weights
from archerfish.weights.locate import locate, locate_config, read_config, read_json
from archerfish.weights.packing import ROUTER_BYTES, Packer

OnProgress = Callable[[float], None]
"""Called with the share of the weights that has been loaded."""


@dataclass(frozen=True, slots=True)
class Assembly:
    """An engine and what its faces need beside it."""

    directory: Path
    """Of the model's files; a config file, where that is all there is."""
    tokenizer_directory: Path | None
    engine: Engine
    executor: Executor
    """What the engine runs its plans with, for whoever measures it apart."""
    intake: Intake
    arch: Arch
    config: ResolvedConfig
    cache_size: CacheSize
    recommended: Mapping[str, Any]
    """Sampling parameters that the model's makers recommend, by name."""
    start_token_id: int
    """What a text begins with."""
    forms: CompiledForms | None
    """Of answers, for whoever compiles them ahead; None without a tokenizer."""

    @property
    def blueprint(self) -> "Blueprint":
        return Blueprint(self.directory, self.arch, self.config)


class Blueprint(NamedTuple):
    """A model and the settings it would run with."""

    directory: Path
    arch: Arch
    config: ResolvedConfig


@dataclass(frozen=True, slots=True)
class _Checkpoint:
    """A model's files, read as far as they are small."""

    directory: Path
    config: Mapping[str, Any]
    generation: Mapping[str, Any]
    family: Family
    arch: Arch


def build(config: EngineConfig, on_progress: OnProgress = lambda _: None) -> Assembly:
    """Load the model and connect everything. Every error a user can fix is raised before weights are read."""
    checkpoint = _read(config)
    resolved = resolve(config, _facts(checkpoint))
    recommended = _recommended(checkpoint.generation, checkpoint.directory / "generation_config.json")
    tokenizer_directory = _tokenizer_directory(config, checkpoint)
    tokenizer = None if tokenizer_directory is None else Tokenizer.load(tokenizer_directory)
    eos_token_ids = _eos_token_ids(checkpoint, tokenizer)
    kernels = choose_kernels(checkpoint.arch, resolved)
    # Beside native threads torch's would only have to be woken for what little it still does.
    torch.set_num_threads(resolved.threads if kernels.native is None else 1)
    layout, kv_format = kv_layout(checkpoint.arch), KvFormat(resolved.kv_cache_dtype, resolved.dtype)
    bytes_per_kv_value = kv_format.bytes_per_value(layout.head_dim)
    bytes_per_weight = _bytes_per_weight(
        checkpoint.arch, _weight_format(resolved), torch_dtype(resolved.dtype).itemsize
    )
    memory = _memory(checkpoint.arch, resolved, kernels, bytes_per_weight, bytes_per_kv_value)
    cache_size = memory.size_cache(resolved)
    texts = calibration_texts(config, resolved, build)
    before = _allocated(resolved.device)
    with refusing(memory, resolved):
        decoder = _model(checkpoint, resolved, kernels, on_progress, texts)
    give_back_memory()
    kv_dtype = torch_dtype(resolved.kv_cache_dtype)

    def executor_of(num_blocks: int, grammars: Grammars | None = None) -> Executor:
        storage = KVStorage(layout, num_blocks, resolved.block_size, kv_dtype, resolved.device, kernels.ops)
        return build_executor(kernels, decoder, storage, resolved, grammars)

    if kernels.triton is not None and resolved.device == "cuda":
        num_bytes = _allocated(resolved.device) - before
        cache_size = measured_size(memory, resolved, rehearsal_stage(executor_of), num_bytes, recommended)
    forms = None if tokenizer is None else CompiledForms(tokenizer, checkpoint.arch.vocab_size, eos_token_ids)
    with refusing(memory, resolved):
        executor = executor_of(cache_size.num_blocks, None if forms is None else Grammars(forms))
    scheduler = _scheduler(resolved, layout, cache_size, eos_token_ids)
    scheduler.guessing = executor.guessing
    logger.info("%s, %s", cache_size, kv_format)
    return Assembly(
        directory=checkpoint.directory,
        tokenizer_directory=tokenizer_directory,
        engine=Engine(
            scheduler,
            executor,
            time.monotonic,
            cost=step_cost(checkpoint.arch, bytes_per_weight, bytes_per_kv_value),
            check_invariants=resolved.check_invariants,
        ),
        executor=executor,
        intake=_intake(checkpoint, resolved, tokenizer),
        arch=checkpoint.arch,
        config=resolved,
        cache_size=cache_size,
        recommended=recommended,
        start_token_id=_start_token_id(checkpoint, eos_token_ids),
        forms=forms,
    )


def examine(config: EngineConfig) -> Blueprint:
    """What would be built. Reads no weights; with load_format dummy it fetches none either."""
    checkpoint = _read(config)
    return Blueprint(checkpoint.directory, checkpoint.arch, resolve(config, _facts(checkpoint)))


def load_decoder(config: EngineConfig) -> Decoder:
    """A model without an engine around it, for whoever brings an attention of their own."""
    checkpoint = _read(config)
    resolved = resolve(config, _facts(checkpoint))
    torch.set_num_threads(resolved.threads)
    plain = Kernels(choose_ops(model_target(checkpoint.arch, resolved)).ops, None, None)
    return _model(checkpoint, resolved, plain, lambda _: None)


def _read(config: EngineConfig) -> _Checkpoint:
    find = locate_config if config.load_format == "dummy" else locate
    directory = find(config.model, config.revision)
    values = read_config(directory, config.hf_overrides)
    family = find_family(values)
    generation = directory / "generation_config.json"
    return _Checkpoint(
        directory=directory,
        config=values,
        generation=read_json(generation) if generation.exists() else {},
        family=family,
        arch=family.read(Fields(values)),
    )


def _facts(checkpoint: _Checkpoint) -> Facts:
    inner = checkpoint.config.get("text_config") or {}
    named = [values.get(key) for values in (checkpoint.config, inner) for key in ("dtype", "torch_dtype")]
    return Facts(
        max_positions=checkpoint.arch.max_positions,
        checkpoint_dtype=next((str(name).removeprefix("torch.") for name in named if name), None),
        can_extend=checkpoint.arch.can_extend_positions,
        has_cuda=torch.cuda.is_available(),
        num_cores=num_usable_cores(),
        num_parameters=num_parameters(checkpoint.arch),
    )


def _tokenizer_directory(config: EngineConfig, checkpoint: _Checkpoint) -> Path | None:
    """None where prompts and answers are token ids."""
    if config.skip_tokenizer_init:
        return None
    if config.tokenizer is not None:
        return locate(config.tokenizer, weights=False)
    if config.load_format == "dummy" and not (checkpoint.directory / "tokenizer.json").exists():
        return None  # config.json alone is enough for random weights.
    return checkpoint.directory


def _intake(checkpoint: _Checkpoint, config: ResolvedConfig, tokenizer: Tokenizer | None) -> Intake:
    arch = checkpoint.arch
    longest = None if arch.can_extend_positions else arch.max_positions
    return Intake(tokenizer, arch.vocab_size, config.max_model_len, time.monotonic, longest, config.guessing_methods)


def _weight_format(config: ResolvedConfig) -> WeightFormat:
    return WeightFormat(
        name=config.quantization,
        group=config.quantization_group,
        zero_points=config.quantization_zero_points,
        calibrated=config.quantization_rounding == "calibrated",
    )


def _bytes_per_weight(arch: Arch, weights: WeightFormat, full: int) -> float:
    """On average over the model: words may have another format than layers, and routers are never rounded."""
    words = arch.vocab_size * arch.hidden_size * (1 if arch.tie_embeddings else 2)
    total, routers = num_parameters(arch), num_router_parameters(arch)
    in_layers = weights.bytes_per_weight(full) * (total - words - routers)
    in_routers = (ROUTER_BYTES if weights.is_lossy else full) * routers
    return (in_layers + in_routers + weights.of_vocabulary.bytes_per_weight(full) * words) / total


def _memory(
    arch: Arch, config: ResolvedConfig, kernels: Kernels, bytes_per_weight: float, bytes_per_kv_value: float
) -> Memory:
    full = torch_dtype(config.dtype).itemsize
    return Memory(
        arch,
        kv_layout(arch),
        _free_memory(config.device),
        full,
        bytes_per_kv_value=bytes_per_kv_value,
        bytes_per_weight=bytes_per_weight,
        bytes_per_activation=full if kernels.native is None else 4,  # Native operations compute in float32.
    )


def _free_memory(device: str) -> int:
    if device == "cuda":
        free, _ = torch.cuda.mem_get_info()
        return int(free)
    return available_memory()


def _allocated(device: str) -> int:
    """Bytes that tensors hold; of a CPU nobody asks."""
    return torch.cuda.memory_allocated() if device == "cuda" else 0


def _model(
    checkpoint: _Checkpoint,
    config: ResolvedConfig,
    kernels: Kernels,
    on_progress: OnProgress,
    texts: Tensor | None = None,
) -> Decoder:
    """With weights in their run-time format. Where that is not the file's, no more than a layer is there in full.

    With texts, weights are calibrated on them.
    """
    is_rounded = kernels.triton is not None and config.quantization != "none"
    packed = kernels.native is not None or is_rounded
    with _default_dtype(torch_dtype(config.dtype)), torch.device("meta" if packed else config.device):
        model = Decoder(checkpoint.arch, kernels.ops, config.max_model_len)
    model.requires_grad_(False).eval()
    (model.rotations if packed else model).to(config.device)
    keep: Keep | None = None
    if packed:
        packer = DevicePacker if is_rounded else Packer
        keep = packer(model, _weight_format(config))
    if texts is not None:
        keep = CalibratedPacker(model, _weight_format(config), texts)
    number = config.dtype if config.quantization == "none" else str(_weight_format(config))
    size = f"{num_parameters(checkpoint.arch) / 1e6:,.1f}M parameters, {number} on {config.device}"
    if config.load_format == "dummy":
        random_weights(model, config.seed, keep, config.device)
        logger.info("%s: %s, random weights", checkpoint.directory.name, size)
    else:
        total = sum(parameter.nbytes for parameter in model.parameters())
        with ProgressBar("loading weights", total, in_bytes=True) as bar:

            def tell(num_bytes: float) -> None:
                bar.update(num_bytes)
                on_progress(num_bytes / total)

            load_weights(model, checkpoint.family, checkpoint.directory, tell, keep, config.device)
        logger.info("%s: %s", checkpoint.directory.name, size)
    return model


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _scheduler(config: ResolvedConfig, layout: KVLayout, size: CacheSize, eos: tuple[int, ...]) -> Scheduler:
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
    return Scheduler(limits, tables, policy, config.seed)


def _eos_token_ids(checkpoint: _Checkpoint, tokenizer: Tokenizer | None) -> tuple[int, ...]:
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
            raise ModelError(f"{checkpoint.directory}: eos_token_id = {value!r} must be a token id or a list of them")
        found.update(listed)
    if tokenizer is not None and tokenizer.eos_token_id is not None:
        found.add(tokenizer.eos_token_id)
    # Files also name tokens that the model has no row for: it never writes them, so there is nothing to bar.
    return tuple(sorted(token for token in found if 0 <= token < checkpoint.arch.vocab_size))


def _start_token_id(checkpoint: _Checkpoint, eos: tuple[int, ...]) -> int:
    """What texts begin with: the token named for it, else one that ends them, as between training texts."""
    inner = checkpoint.config.get("text_config") or {}
    named = (checkpoint.config.get("bos_token_id"), inner.get("bos_token_id"), *eos, 0)
    return next(token for token in named if isinstance(token, int) and 0 <= token < checkpoint.arch.vocab_size)


def _recommended(generation: Mapping[str, Any], path: Path) -> dict[str, Any]:
    names = {"temperature": "temperature", "top_k": "top_k", "top_p": "top_p", "min_p": "min_p"}
    names |= {"repetition_penalty": "repetition_penalty", "max_new_tokens": "max_tokens"}
    given = {ours: generation[theirs] for theirs, ours in names.items() if generation.get(theirs) is not None}
    if generation.get("do_sample") is False:
        given["temperature"] = 0.0
    try:
        SamplingParams.from_dict(given)  # A value that makes no sense shows now, not at the first request.
    except InvalidParameter as error:
        raise ModelError(f"{path}: {error}") from error
    return given
