"""What guesses for a model with weights of its own: found, checked against the model, and loaded beside it."""

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
from archerfish.engine.kernels import Guessing, Kernels, beside, build_runnable, step_limits
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
from archerfish.execution.memory import Beside
from archerfish.execution.step.rows import Rows
from archerfish.kvcache.layout import KVLayout, kv_layout
from archerfish.kvcache.storage import KVStorage
from archerfish.models.decoder import Decoder
from archerfish.models.eagle import Eagle
from archerfish.models.medusa import Medusa
from archerfish.ops import torch_dtype
from archerfish.speculation.drafters.cache_progress import Filled, kept_group
from archerfish.speculation.drafters.drafter import DraftModel, EagleNetwork, MedusaNetwork, Vocabulary
from archerfish.speculation.drafters.feature_store import FeatureStore
from archerfish.weights.heads import load_head, read_head
from archerfish.weights.locate import locate, read_json
from archerfish.weights.packing import Packer

MakeGuessing = Callable[[int, Rows], Guessing]
"""For a cache of so many blocks, and its rows."""


class Drafts(Protocol):
    """Something that guesses, not loaded yet."""

    @property
    def method(self) -> str: ...

    @property
    def memory(self) -> Beside: ...

    @property
    def taps(self) -> tuple[int, ...]:
        """Layers of the target that it listens to."""

    def load(self, target: Decoder) -> MakeGuessing:
        """Read its weights."""


class Source(NamedTuple):
    method: str
    directory: Path


@dataclass(frozen=True, slots=True)
class Blocks:
    """The target's blocks, as far as somebody else uses them."""

    group: int
    """The KV group that is kept longest."""
    window: int | None
    """Tokens that it reaches back."""

    @classmethod
    def of(cls, target: Arch) -> "Blocks":
        windows = kv_layout(target).windows
        group = kept_group(windows)
        return cls(group, windows[group])

    def narrowed(self, arch: Arch) -> Arch:
        """With no window wider than the blocks reach."""
        return _with_windows(arch, lambda own: self.window if own is None else min(own, self.window or own))

    def layout(self, arch: Arch) -> KVLayout:
        """All layers in one group, whatever their windows."""
        return kv_layout(_with_windows(arch, lambda _: self.window))


@dataclass(frozen=True, slots=True)
class ModelDrafts:
    """A smaller model of the same vocabulary."""

    checkpoint: Checkpoint
    config: ResolvedConfig
    kernels: Kernels
    blocks: Blocks

    @property
    def method(self) -> str:
        return "draft_model"

    @property
    def memory(self) -> Beside:
        arch, config = self.checkpoint.arch, self.config
        full = torch_dtype(config.dtype).itemsize
        weights = num_parameters(arch) * mean_weight_bytes(arch, weight_format(config), full)
        return Beside(int(weights), self.blocks.layout(arch).block_bytes(1, full))

    @property
    def taps(self) -> tuple[int, ...]:
        return ()

    def load(self, target: Decoder) -> MakeGuessing:
        checkpoint = replace(self.checkpoint, arch=self.blocks.narrowed(self.checkpoint.arch))
        return partial(self._guessing, build_model(checkpoint, self.config, self.kernels, lambda _: None))

    def _guessing(self, decoder: Decoder, num_blocks: int, rows: Rows) -> Guessing:
        config, layout = self.config, self.blocks.layout(decoder.arch)
        storage = _storage(layout, num_blocks, config, self.kernels)
        own, model = rows.drafter_view(self.blocks.group), build_runnable(self.kernels, decoder, storage, config)
        at_once = model.drafts(own) if isinstance(model, RecordedModel) else None
        network = DraftModel(model, storage, own, at_once)
        filled = Filled(num_blocks, config.block_size, self.blocks.group, rows.tables[self.blocks.group])
        return Guessing("draft_model", network, filled, config.max_model_len)


@dataclass(frozen=True, slots=True)
class HeadDrafts:
    """A head that reads what the target's layers made of tokens."""

    source: Source
    spec: EagleSpec | MedusaSpec
    config: ResolvedConfig
    """The target's, but for the format of weights."""
    kernels: Kernels
    blocks: Blocks

    @property
    def method(self) -> str:
        return self.source.method

    @property
    def memory(self) -> Beside:
        config, spec = self.config, self.spec
        full = torch_dtype(config.dtype).itemsize
        # As large as its files, or smaller: nothing is gained by counting more closely.
        weights = sum(file.stat().st_size for file in self.source.directory.iterdir() if file.is_file())
        per_token = self._feature_width * full
        if isinstance(spec, EagleSpec):
            per_token += self.blocks.layout(spec.arch).block_bytes(1, full)
        return Beside(weights, per_token)

    @property
    def taps(self) -> tuple[int, ...]:
        return self.spec.target_layers if isinstance(self.spec, EagleSpec) else ()

    @property
    def _feature_width(self) -> int:
        spec = self.spec
        return spec.hidden_size if isinstance(spec, MedusaSpec) else len(spec.target_layers) * spec.target_hidden_size

    def load(self, target: Decoder) -> MakeGuessing:
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
        keep = Packer(head, weight_format(config)) if is_packed else None
        load_head(head, self.source.directory, keep, config.device)
        logger.info("%s guesses for it: %s", self.source.directory.name, self.source.method)
        return partial(self._guessing, head)

    def _narrowed(self, spec: EagleSpec) -> EagleSpec:
        return replace(spec, layer=self.blocks.narrowed(spec.arch).layers[0])

    def _guessing(self, head: Eagle | Medusa, num_blocks: int, rows: Rows) -> Guessing:
        config, group, native = self.config, self.blocks.group, self.kernels.native
        dtype = torch_dtype(config.dtype)
        features = FeatureStore(num_blocks, self._feature_width, dtype, config.device, rows.drafter_view(group))
        filled = Filled(num_blocks, config.block_size, group, rows.tables[group])
        vocabulary = Vocabulary(head.spec.target_vocab_size, head.target_ids)
        if isinstance(head, Medusa):
            plain = partial(_medusa_logits, head)
            heads = plain if native is None else RecordedMedusa(head, native, config.max_num_seqs)
            medusa = MedusaNetwork(heads, features, vocabulary)
            return Guessing("medusa", medusa, filled, config.max_model_len, features, head.spec.num_heads)
        storage = _storage(self.blocks.layout(head.spec.arch), num_blocks, config, self.kernels)
        own = rows.drafter_view(group, shift=1)
        if native is None:
            eager = partial(EagerEagle, head, storage)
            eagle = EagleNetwork(eager(joins=True), eager(joins=False), storage, features, own, vocabulary)
        else:
            record = partial(record_eagle, head, storage, native, step_limits(config))
            first, further = record(joins=True), record(joins=False)
            at_once = RecordedDrafts(first, further, own, vocabulary.size, vocabulary.target_ids)
            eagle = EagleNetwork(first, further, storage, features, own, vocabulary, at_once)
        return Guessing("eagle", eagle, filled, config.max_model_len, features)


def with_named_method(config: ResolvedConfig) -> ResolvedConfig:
    """Where a model was given without a method, and a number of draft tokens: the method that its files are for."""
    speculation = config.speculation
    if speculation.method != "auto" or speculation.model is None or speculation.num_speculative_tokens is None:
        return config
    method: Any = drafter_kind(locate(speculation.model))
    return replace(config, speculation=replace(speculation, method=method))


def find_drafts(config: ResolvedConfig, target: Checkpoint, find: Find = locate) -> Source | None:
    """Whose weights guess, if any do; a ConfigError where a method needs some and none are known."""
    speculation = config.speculation
    method = speculation.method
    if method not in ("auto", *DRAFTER_METHODS):
        return None
    if speculation.model is not None:
        directory = find(speculation.model)
        return Source(drafter_kind(directory) if method == "auto" else method, directory)
    if method == "auto" and (config.device != "cpu" or config.load_format == "dummy"):
        return None
    for one in ("draft_model", "eagle") if method == "auto" else (method,):
        found = draft_in_box(target.directory, one)
        if found is not None:
            return Source(one, found)
    if method == "auto":
        return None
    raise ConfigError(
        f"--speculative-config method {method} needs weights that guess for {target.directory.name}: "
        f'add "model": DIRECTORY, for example one that archerfish train-draft --method {method} has made'
    )


def choose_drafts(
    config: EngineConfig, resolved: ResolvedConfig, target: Checkpoint, kernels: Kernels, find: Find = locate
) -> Drafts | None:
    """What will guess for the target, read as far as it is small; or a ConfigError that says why it cannot."""
    source = find_drafts(resolved, target, find)
    if source is None:
        return None
    blocks = Blocks.of(target.arch)
    if source.method != "draft_model":
        return _head_drafts(source, resolved, target, kernels, blocks)
    own = replace(
        config,
        model=str(source.directory),
        revision=None,
        hf_overrides={},
        dtype="auto",
        kv_cache_dtype="auto",
        speculative_config={"method": "off"},
        max_model_len=None,
        **_own_format(resolved),
    )
    checkpoint = read_checkpoint(own)
    if checkpoint.arch.vocab_size != target.arch.vocab_size:
        raise ConfigError(
            f"--speculative-config model {source.directory.name} has {checkpoint.arch.vocab_size} tokens, "
            f"{target.directory.name} has {target.arch.vocab_size}: a draft model must have the same vocabulary"
        )
    facts = facts_of(checkpoint)
    settled = resolve(replace(own, max_model_len=min(resolved.max_model_len, facts.max_positions)), facts)
    return ModelDrafts(checkpoint, settled, beside(kernels, checkpoint.arch, settled), blocks)


def _head_drafts(
    source: Source, resolved: ResolvedConfig, target: Checkpoint, kernels: Kernels, blocks: Blocks
) -> HeadDrafts:
    spec = read_head(source.directory, target.arch)
    found = "eagle" if isinstance(spec, EagleSpec) else "medusa"
    if found != source.method:
        raise ConfigError(
            f"--speculative-config model {source.directory.name} is for method {found}, not {source.method}"
        )
    if resolved.device != "cpu" and resolved.speculation.quantization != "none":
        raise ConfigError(f"--speculative-config quantization of {found} needs a CPU; leave it out on a GPU")
    settled = replace(resolved, **_own_format(resolved))
    arch = spec.arch if isinstance(spec, EagleSpec) else target.arch
    chosen = beside(kernels, arch, settled)
    if kernels.native is not None and chosen.native is None:
        raise ConfigError(
            f"--speculative-config model {source.directory.name}: its heads of {arch.layers[0].attention.head_dim} "
            "cannot be run beside this model; use --kernels reference"
        )
    return HeadDrafts(source, spec, settled, chosen, blocks)


def _own_format(config: ResolvedConfig) -> dict[str, Any]:
    quantization = config.speculation.quantization
    return {
        "quantization": quantization,
        "quantization_group": 64,
        "quantization_zero_points": False,
        "quantization_rounding": "nearest" if quantization == "int4" else "auto",
    }


def drafter_kind(directory: Path) -> str:
    """The method that a directory's weights are for."""
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
