"""Reads a model's files and builds it with weights in their run-time format. Knows no engine around it."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from archerfish.arch.arch import Arch
from archerfish.arch.cost import num_parameters, num_router_parameters
from archerfish.config.resolve import ResolvedConfig, ResolveFacts, resolve
from archerfish.config.settings import EngineConfig
from archerfish.console import ProgressBar, logger
from archerfish.engine.factory.kernels import Kernels, model_target
from archerfish.machine.cpu import num_usable_cores
from archerfish.models.decoder import Decoder
from archerfish.models.families import Family, Fields, find_family
from archerfish.ops import choose_ops, torch_dtype
from archerfish.quant import WeightFormat
from archerfish.weights.calibration import CalibratedPacker
from archerfish.weights.device_packing import DevicePacker
from archerfish.weights.load import StoreParameter, load_weights, random_weights
from archerfish.weights.locate import locate, locate_config, read_config, read_json
from archerfish.weights.packing import ROUTER_BYTES, Packer

OnProgress = Callable[[float], None]
"""Called with the share of the weights that has been loaded."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A model's files, read as far as they are small."""

    directory: Path
    config: Mapping[str, Any]
    generation: Mapping[str, Any]
    family: Family
    arch: Arch


class Find(Protocol):
    def __call__(self, model: str | None, revision: str | None = None, /) -> Path:
        """The directory of a model's files; a config file, if that is what was named."""


def read_checkpoint(config: EngineConfig, find: Find | None = None) -> Checkpoint:
    """By default all of the model's files are found, and downloaded if need be, but for random weights."""
    find = find or (locate_config if config.load_format == "dummy" else locate)
    directory = find(config.model, config.revision)
    values = read_config(directory, config.hf_overrides)
    family = find_family(values)
    generation = directory / "generation_config.json"
    return Checkpoint(
        directory=directory,
        config=values,
        generation=read_json(generation) if generation.exists() else {},
        family=family,
        arch=family.read(Fields(values)),
    )


def facts_of(checkpoint: Checkpoint) -> ResolveFacts:
    inner = checkpoint.config.get("text_config") or {}
    named = [values.get(key) for values in (checkpoint.config, inner) for key in ("dtype", "torch_dtype")]
    return ResolveFacts(
        max_positions=checkpoint.arch.max_positions,
        checkpoint_dtype=next((str(name).removeprefix("torch.") for name in named if name), None),
        can_extend=checkpoint.arch.can_extend_positions,
        has_cuda=torch.cuda.is_available(),
        num_cores=num_usable_cores(),
        num_parameters=num_parameters(checkpoint.arch),
    )


def load_decoder(config: EngineConfig) -> Decoder:
    """Load a model without an engine, for callers with an attention of their own."""
    checkpoint = read_checkpoint(config)
    resolved = resolve(config, facts_of(checkpoint))
    torch.set_num_threads(resolved.threads)
    plain = Kernels(choose_ops(model_target(checkpoint.arch, resolved)).ops, None, None)
    return build_model(checkpoint, resolved, plain, lambda _: None)


def weight_format(config: ResolvedConfig) -> WeightFormat:
    return WeightFormat(
        name=config.quantization,
        group=config.quantization_group,
        zero_points=config.quantization_zero_points,
        calibrated=config.quantization_rounding == "calibrated",
    )


def mean_weight_bytes(arch: Arch, weights: WeightFormat, full: int) -> float:
    """On average over the model: words may have another format than layers, and routers are never rounded."""
    words = arch.vocab_size * arch.hidden_size * (1 if arch.tie_embeddings else 2)
    total, routers = num_parameters(arch), num_router_parameters(arch)
    in_layers = weights.bytes_per_weight(full) * (total - words - routers)
    in_routers = (ROUTER_BYTES if weights.is_lossy else full) * routers
    return (in_layers + in_routers + weights.of_vocabulary.bytes_per_weight(full) * words) / total


def build_model(
    checkpoint: Checkpoint,
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
    with default_dtype(torch_dtype(config.dtype)), torch.device("meta" if packed else config.device):
        model = Decoder(checkpoint.arch, kernels.ops, config.max_model_len)
    model.requires_grad_(False).eval()
    (model.rotations if packed else model).to(config.device)
    keep: StoreParameter | None = None
    if packed:
        packer = DevicePacker if is_rounded else Packer
        keep = packer(model, weight_format(config))
    if texts is not None:
        keep = CalibratedPacker(model, weight_format(config), texts)
    number = config.dtype if config.quantization == "none" else str(weight_format(config))
    size = f"{num_parameters(checkpoint.arch) / 1e6:,.1f}M parameters, {number} on {config.device}"
    if config.load_format == "dummy":
        random_weights(model, config.seed, keep, config.device)
        speculation = config.speculation.method
        logger.info("%s: %s, random weights, speculation %s", checkpoint.directory.name, size, speculation)
    else:
        total = sum(parameter.nbytes for parameter in model.parameters())
        with ProgressBar("loading weights", total, in_bytes=True) as bar:

            def report(num_bytes: float) -> None:
                bar.update(num_bytes)
                on_progress(num_bytes / total)

            load_weights(model, checkpoint.family, checkpoint.directory, report, keep, config.device)
        logger.info("%s: %s", checkpoint.directory.name, size)
    return model


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
