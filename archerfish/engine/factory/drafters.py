"""Finds drafters for a model, checks them against it, and loads them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch

from archerfish.arch.arch import Arch
from archerfish.arch.cost import num_parameters
from archerfish.arch.heads import EagleSpec, MedusaSpec
from archerfish.box import draft_in_box
from archerfish.config.resolve import ResolvedConfig, resolve
from archerfish.config.settings import EngineConfig
from archerfish.config.speculation import DRAFTER_METHODS
from archerfish.console import logger
from archerfish.engine.factory.executors import build_runnable, step_limits
from archerfish.engine.factory.kernels import Kernels, drafter_kernels
from archerfish.engine.factory.speculation import DrafterRuntime
from archerfish.engine.models import (
    Checkpoint,
    Find,
    build_model,
    default_dtype,
    facts_of,
    mean_weight_bytes,
    read_checkpoint,
    weight_format,
)
from archerfish.errors import ConfigError
from archerfish.execution.backends.cpu_program import RecordedDrafts, RecordedMedusa, RecordedModel, record_eagle
from archerfish.execution.backends.eager import EagerEagle
from archerfish.execution.memory import DrafterMemory
from archerfish.execution.step.rows import Rows
from archerfish.kvcache.layout import KVLayout, kv_layout
from archerfish.kvcache.storage import KVStorage
from archerfish.models.decoder import Decoder
from archerfish.models.eagle import Eagle
from archerfish.models.medusa import Medusa
from archerfish.ops import torch_dtype
from archerfish.speculation.drafters.cache_progress import DraftCacheProgress, longest_group
from archerfish.speculation.drafters.drafter import (
    DraftVocabulary,
    RunnableDraftModel,
    RunnableEagle,
    RunnableMedusa,
)
from archerfish.speculation.drafters.feature_store import FeatureStore
from archerfish.weights.heads import load_head, read_head
from archerfish.weights.locate import locate, read_json
from archerfish.weights.packing import Packer

MakeRuntime = Callable[[int, Rows], DrafterRuntime]
"""Connects a loaded drafter to a cache of so many blocks, and its rows."""


class PlannedDrafter(Protocol):
    """A drafter that was found and checked, but is not loaded yet."""

    @property
    def method(self) -> str: ...

    @property
    def memory(self) -> DrafterMemory: ...

    @property
    def aux_layers(self) -> tuple[int, ...]:
        """Layers of the target whose inputs it reads."""

    def load(self, target: Decoder) -> MakeRuntime:
        """Read its weights."""


class DrafterSource(NamedTuple):
    """Where a drafter's files are, and the method they are for."""

    method: str
    directory: Path


@dataclass(frozen=True, slots=True)
class SharedBlockLayout:
    """The target's blocks that a drafter shares."""

    group: int
    """The KV group whose blocks are cached longest."""
    window: int | None
    """Tokens that its layers reach back; None for all."""

    @classmethod
    def of(cls, target: Arch) -> "SharedBlockLayout":
        windows = kv_layout(target).windows
        group = longest_group(windows)
        return cls(group, windows[group])

    def narrowed(self, arch: Arch) -> Arch:
        """Return a drafter's arch with no window wider than the blocks reach."""
        return _with_windows(arch, lambda own: self.window if own is None else min(own, self.window or own))

    def layout(self, arch: Arch) -> KVLayout:
        """Return a layout with all layers in one group, whatever their windows."""
        return kv_layout(_with_windows(arch, lambda _: self.window))


@dataclass(frozen=True, slots=True)
class PlannedDraftModel:
    """A smaller model of the same vocabulary."""

    checkpoint: Checkpoint
    config: ResolvedConfig
    kernels: Kernels
    blocks: SharedBlockLayout

    @property
    def method(self) -> str:
        return "draft_model"

    @property
    def memory(self) -> DrafterMemory:
        arch, config = self.checkpoint.arch, self.config
        full = torch_dtype(config.dtype).itemsize
        weights = num_parameters(arch) * mean_weight_bytes(arch, weight_format(config), full)
        return DrafterMemory(int(weights), self.blocks.layout(arch).block_bytes(1, full))

    @property
    def aux_layers(self) -> tuple[int, ...]:
        return ()

    def load(self, target: Decoder) -> MakeRuntime:
        checkpoint = replace(self.checkpoint, arch=self.blocks.narrowed(self.checkpoint.arch))
        return partial(self._runtime, build_model(checkpoint, self.config, self.kernels, lambda _: None))

    def _runtime(self, decoder: Decoder, num_blocks: int, rows: Rows) -> DrafterRuntime:
        config, layout = self.config, self.blocks.layout(decoder.arch)
        storage = _storage(layout, num_blocks, config, self.kernels)
        own, model = rows.drafter_view(self.blocks.group), build_runnable(self.kernels, decoder, storage, config)
        native_drafting = model.drafts(own) if isinstance(model, RecordedModel) else None
        drafter = RunnableDraftModel(model, storage, own, native_drafting)
        progress = DraftCacheProgress(num_blocks, config.block_size, self.blocks.group, rows.tables[self.blocks.group])
        return DrafterRuntime("draft_model", drafter, progress, config.max_model_len)


@dataclass(frozen=True, slots=True)
class PlannedHead:
    """A head that reads features from the target's layers."""

    source: DrafterSource
    spec: EagleSpec | MedusaSpec
    config: ResolvedConfig
    """The target's settings, with the drafter's own weight format."""
    kernels: Kernels
    blocks: SharedBlockLayout

    @property
    def method(self) -> str:
        return self.source.method

    @property
    def memory(self) -> DrafterMemory:
        config, spec = self.config, self.spec
        full = torch_dtype(config.dtype).itemsize
        # Its files are an upper bound, close enough.
        weights = sum(file.stat().st_size for file in self.source.directory.iterdir() if file.is_file())
        per_token = self._feature_width * full
        if isinstance(spec, EagleSpec):
            per_token += self.blocks.layout(spec.arch).block_bytes(1, full)
        return DrafterMemory(weights, per_token)

    @property
    def aux_layers(self) -> tuple[int, ...]:
        return self.spec.target_layers if isinstance(self.spec, EagleSpec) else ()

    @property
    def _feature_width(self) -> int:
        spec = self.spec
        return spec.hidden_size if isinstance(spec, MedusaSpec) else len(spec.target_layers) * spec.target_hidden_size

    def load(self, target: Decoder) -> MakeRuntime:
        config, kernels, spec = self.config, self.kernels, self.spec
        is_packed = kernels.native is not None
        with default_dtype(torch_dtype(config.dtype)), torch.device("meta" if is_packed else config.device):
            head: Eagle | Medusa
            if isinstance(spec, EagleSpec):
                table = None if spec.has_embedding else target.embedding
                head = Eagle(self._narrowed(spec), table, kernels.ops, config.max_model_len)
            else:
                head = Medusa(spec, None if spec.has_own_head else target.head, kernels.ops)
        head.requires_grad_(False).eval()
        if isinstance(head, Eagle):
            head.rotations.to(config.device)
        packer = Packer(head, weight_format(config)) if is_packed else None
        load_head(head, self.source.directory, packer, config.device)
        logger.info("drafter %s: %s", self.source.method, self.source.directory.name)
        return partial(self._runtime, head)

    def _narrowed(self, spec: EagleSpec) -> EagleSpec:
        return replace(spec, layer=self.blocks.narrowed(spec.arch).layers[0])

    def _runtime(self, head: Eagle | Medusa, num_blocks: int, rows: Rows) -> DrafterRuntime:
        config, group, native = self.config, self.blocks.group, self.kernels.native
        dtype = torch_dtype(config.dtype)
        features = FeatureStore(num_blocks, self._feature_width, dtype, config.device, rows.drafter_view(group))
        progress = DraftCacheProgress(num_blocks, config.block_size, group, rows.tables[group])
        vocabulary = DraftVocabulary(head.spec.target_vocab_size, head.target_ids)
        if isinstance(head, Medusa):
            plain = partial(_medusa_logits, head)
            heads = plain if native is None else RecordedMedusa(head, native, config.max_num_seqs)
            medusa = RunnableMedusa(heads, features, vocabulary)
            return DrafterRuntime("medusa", medusa, progress, config.max_model_len, features, head.spec.num_heads)
        storage = _storage(self.blocks.layout(head.spec.arch), num_blocks, config, self.kernels)
        own = rows.drafter_view(group, shift=1)
        if native is None:
            eager = partial(EagerEagle, head, storage)
            eagle = RunnableEagle(eager(joins=True), eager(joins=False), storage, features, own, vocabulary)
        else:
            record = partial(record_eagle, head, storage, native, step_limits(config))
            first, further = record(joins=True), record(joins=False)
            native_drafting = RecordedDrafts(first, further, own, vocabulary.size, vocabulary.target_ids)
            eagle = RunnableEagle(first, further, storage, features, own, vocabulary, native_drafting)
        return DrafterRuntime("eagle", eagle, progress, config.max_model_len, features)


def with_named_method(config: ResolvedConfig) -> ResolvedConfig:
    """Name the method that a drafter's files are for, where a model and a number of tokens but no method are given."""
    speculation = config.speculation
    if speculation.method != "auto" or speculation.model is None or speculation.num_speculative_tokens is None:
        return config
    method: Any = drafter_kind(locate(speculation.model))
    return replace(config, speculation=replace(speculation, method=method))


def find_drafter(config: ResolvedConfig, target: Checkpoint, find: Find = locate) -> DrafterSource | None:
    """Return where the drafter is, if there is one; raise a ConfigError if a method needs one and none is known."""
    speculation = config.speculation
    method = speculation.method
    if method not in ("auto", *DRAFTER_METHODS):
        return None
    if speculation.model is not None:
        directory = find(speculation.model)
        return DrafterSource(drafter_kind(directory) if method == "auto" else method, directory)
    if method == "auto" and (config.device != "cpu" or config.load_format == "dummy"):
        return None
    for candidate in ("draft_model", "eagle") if method == "auto" else (method,):
        bundled = draft_in_box(target.directory, candidate)
        if bundled is not None:
            return DrafterSource(candidate, bundled)
    if method == "auto":
        return None
    raise ConfigError(
        f"--speculative-config method {method} needs a drafter for {target.directory.name}: "
        f'add "model": DIRECTORY, for example one made by archerfish train-draft --method {method}'
    )


def choose_drafter(
    config: EngineConfig, resolved: ResolvedConfig, target: Checkpoint, kernels: Kernels, find: Find = locate
) -> PlannedDrafter | None:
    """Return the target's drafter, of which only small files are read; raise a ConfigError if it does not fit."""
    source = find_drafter(resolved, target, find)
    if source is None:
        return None
    blocks = SharedBlockLayout.of(target.arch)
    if source.method != "draft_model":
        return _planned_head(source, resolved, target, kernels, blocks)
    own_config = replace(
        config,
        model=str(source.directory),
        revision=None,
        hf_overrides={},
        dtype="auto",
        kv_cache_dtype="auto",
        speculative_config={"method": "off"},
        max_model_len=None,
        **_drafter_format(resolved),
    )
    checkpoint = read_checkpoint(own_config)
    if checkpoint.arch.vocab_size != target.arch.vocab_size:
        raise ConfigError(
            f"--speculative-config model {source.directory.name} has {checkpoint.arch.vocab_size} tokens, "
            f"{target.directory.name} has {target.arch.vocab_size}: a draft model must have the same vocabulary"
        )
    facts = facts_of(checkpoint)
    settled = resolve(replace(own_config, max_model_len=min(resolved.max_model_len, facts.max_positions)), facts)
    return PlannedDraftModel(checkpoint, settled, drafter_kernels(kernels, checkpoint.arch, settled), blocks)


def _planned_head(
    source: DrafterSource,
    resolved: ResolvedConfig,
    target: Checkpoint,
    kernels: Kernels,
    blocks: SharedBlockLayout,
) -> PlannedHead:
    spec = read_head(source.directory, target.arch)
    method = "eagle" if isinstance(spec, EagleSpec) else "medusa"
    if method != source.method:
        raise ConfigError(
            f"--speculative-config model {source.directory.name} is for method {method}, not {source.method}"
        )
    if resolved.device != "cpu" and resolved.speculation.quantization != "none":
        raise ConfigError(f"--speculative-config quantization of {method} needs a CPU; leave it out on a GPU")
    settled = replace(resolved, **_drafter_format(resolved))
    arch = spec.arch if isinstance(spec, EagleSpec) else target.arch
    chosen = drafter_kernels(kernels, arch, settled)
    if kernels.native is not None and chosen.native is None:
        raise ConfigError(
            f"--speculative-config model {source.directory.name}: its heads of {arch.layers[0].attention.head_dim} "
            "cannot be run with this model's kernels; use --kernels reference"
        )
    return PlannedHead(source, spec, settled, chosen, blocks)


def _drafter_format(config: ResolvedConfig) -> dict[str, Any]:
    quantization = config.speculation.quantization
    return {
        "quantization": quantization,
        "quantization_group": 64,
        "quantization_zero_points": False,
        "quantization_rounding": "nearest" if quantization == "int4" else "auto",
    }


def drafter_kind(directory: Path) -> str:
    """Return the method that a directory's weights are for."""
    config: Mapping[str, Any] = read_json(directory / "config.json")
    if "medusa_num_heads" in config:
        return "medusa"
    is_eagle = "speculators_model_type" in config or "draft_vocab_size" in config
    return "eagle" if is_eagle else "draft_model"


def _medusa_logits(head: Medusa, states: torch.Tensor) -> list[torch.Tensor]:
    return [head.logits(number, x) for number, x in enumerate(head(states))]


def _storage(layout: KVLayout, num_blocks: int, config: ResolvedConfig, kernels: Kernels) -> KVStorage:
    return KVStorage(layout, num_blocks, config.block_size, torch_dtype(config.dtype), config.device, kernels.ops)


def _with_windows(arch: Arch, window: Callable[[int | None], int | None]) -> Arch:
    layers = tuple(
        replace(layer, attention=replace(layer.attention, window=window(layer.attention.window)))
        for layer in arch.layers
    )
    return replace(arch, layers=layers)
