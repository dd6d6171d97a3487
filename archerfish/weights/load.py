"""Fills a decoder's parameters from a checkpoint, or with random numbers, each tensor without an extra copy."""

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import torch
from torch import Tensor

from archerfish.errors import CheckpointError
from archerfish.models.decoder import Decoder
from archerfish.models.families.family import Family, Placement
from archerfish.models.layers import Norm
from archerfish.weights.checkpoint import SafetensorsCheckpoint, is_float

Progress = Callable[[float], None]
"""Called with the bytes filled so far."""

StoreParameter = Callable[[str, Tensor], None]
"""Called with a parameter's name and its full tensor, to store it in the model in another format."""

_SHOWN = 5
_NOISE_LENGTH = 1_048_573
"""Numbers of noise. A prime: rows of any width begin at different offsets, so no two of a matrix are alike."""


def load_weights(
    model: Decoder,
    family: Family,
    directory: Path,
    progress: Progress,
    store: StoreParameter | None = None,
    device: str = "cpu",
) -> None:
    """Fill every parameter from the directory's safetensors, or raise a CheckpointError that names what is wrong.

    Everything is checked against the files' headers before the first byte is copied. A model without memory of its own
    (on torch's meta device) needs `store`: no more than one full parameter is then in memory, on `device`, besides what
    `store` makes of it.
    """
    placements = list(family.placements(model.arch))
    with SafetensorsCheckpoint(directory, family.renames) as checkpoint:
        tied = [r"(.*\.)?lm_head\.weight"] if model.arch.tie_embeddings else []
        check_names(directory, placements, set(checkpoint.tensors), [*family.ignored, *tied])
        _check_formats(checkpoint, placements)
        parameters = dict(model.named_parameters())
        shapes = {name: stored.shape for name, stored in checkpoint.tensors.items()}
        check_shapes(directory, placements, shapes, parameters)
        fill(parameters, placements, checkpoint.read, progress, store, device)


def fill(
    parameters: Mapping[str, Tensor],
    placements: Iterable[Placement],
    read: Callable[[str], Tensor],
    progress: Progress = lambda _: None,
    store: StoreParameter | None = None,
    device: str = "cpu",
) -> None:
    """Fill every parameter that has a placement, reading its sources by name."""
    done = 0
    with torch.no_grad():
        for name, parts in _by_target(placements).items():
            target = _memory_for(parameters[name], device)
            for placement in parts:
                part = _part(target, placement)
                part.copy_(_stored(read, placement))
                done += part.nbytes
                progress(done)
            if store is not None:
                store(name, target)


def random_weights(model: Decoder, seed: int, store: StoreParameter | None = None, device: str = "cpu") -> None:
    """Fill with random numbers that preserve activations near 1 through any depth; norms get their initial values.

    One stretch of noise is repeated, because drawing billions of numbers takes minutes.
    """
    table = model.embedding.weight
    where = torch.device(device) if table.is_meta else table.device
    noise = torch.empty(_NOISE_LENGTH, dtype=table.dtype, device=where)
    noise.normal_(generator=torch.Generator(device=where).manual_seed(seed))
    noise, first = noise.repeat(2), 0
    with torch.no_grad():
        for name, parameter in list(model.named_parameters()):
            target = _memory_for(parameter, device)
            if target.dim() > 1:
                # Continuing where the last one ended makes no two layers alike.
                period = noise[first : first + _NOISE_LENGTH]
                _lay_out(period, target.shape[-1] ** -0.5, target.view(-1))
                first = (first + target.numel()) % _NOISE_LENGTH
            else:
                target.fill_(_unit(model, name))
            if store is not None:
                store(name, target)


def _unit(model: Decoder, name: str) -> float:
    """Return the neutral value: 1 for the weight of a norm, 0 for every bias."""
    holder, _, field = name.rpartition(".")
    module = model.get_submodule(holder)
    return 1.0 - module.spec.weight_offset if isinstance(module, Norm) and field == "weight" else 0.0


def _memory_for(parameter: Tensor, device: str) -> Tensor:
    """Return the parameter itself, or memory for it where it has none."""
    if parameter.is_meta:
        return torch.empty(parameter.shape, dtype=parameter.dtype, device=device)
    return parameter.data


def _by_target(placements: Iterable[Placement]) -> dict[str, list[Placement]]:
    by_target: dict[str, list[Placement]] = {}
    for placement in placements:
        by_target.setdefault(placement.target, []).append(placement)
    return by_target


def _lay_out(period: Tensor, scale: float, target: Tensor) -> None:
    """Fill the target with the period, scaled, over and over."""
    num_whole, num_left = divmod(len(target), len(period))
    whole, left = target[: num_whole * len(period)], target[num_whole * len(period) :]
    # Written in place: a large model leaves no memory for a copy.
    torch.mul(period.expand(num_whole, -1), scale, out=whole.view(num_whole, len(period)))
    torch.mul(period[:num_left], scale, out=left)


def _stored(read: Callable[[str], Tensor], placement: Placement) -> Tensor:
    tensor = read(placement.source)
    return tensor if placement.transform is None else placement.transform(tensor)


def _part(parameter: Tensor, placement: Placement) -> Tensor:
    if placement.expert is not None:
        parameter = parameter[placement.expert]
    return parameter if placement.rows is None else parameter[placement.rows]


def check_names(directory: Path, placements: Iterable[Placement], names: set[str], ignored: Iterable[str]) -> None:
    """Check that tensors and placements match; `ignored` are regular expressions of other tensors."""
    wanted = {placement.source for placement in placements}
    patterns = list(ignored)
    missing = sorted(wanted - names)
    unexpected = sorted(name for name in names - wanted if not any(re.fullmatch(pattern, name) for pattern in patterns))
    problems = [
        f"{len(names)} {what}: {_some(names)}"
        for what, names in (("missing", missing), ("unexpected", unexpected))
        if names
    ]
    if problems:
        raise CheckpointError(
            f"{directory} does not hold the weights config.json describes; tensors {'; '.join(problems)}"
        )


def _check_formats(checkpoint: SafetensorsCheckpoint, placements: Iterable[Placement]) -> None:
    for placement in placements:
        stored = checkpoint.tensors[placement.source]
        if not is_float(stored):
            raise CheckpointError(
                f"{placement.source} is stored as {stored.dtype}; quantized checkpoints are not supported yet"
            )


def check_shapes(
    directory: Path,
    placements: Iterable[Placement],
    shapes: Mapping[str, tuple[int, ...]],
    parameters: Mapping[str, Tensor],
) -> None:
    wrong = []
    for placement in placements:
        # A tensor without storage has the shape after the transform at no cost.
        shape = torch.empty(shapes[placement.source], device="meta")
        expected = _part(parameters[placement.target], placement).shape
        try:
            fits = (shape if placement.transform is None else placement.transform(shape)).shape == expected
        except (RuntimeError, IndexError):
            fits = False
        if not fits:
            wrong.append(f"{placement.source} is {list(shapes[placement.source])}, where {list(expected)} belongs")
    if wrong:
        raise CheckpointError(f"{directory}: {len(wrong)} tensors of the wrong shape: {_some(wrong)}")


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
