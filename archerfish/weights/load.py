"""Brings a checkpoint, or random numbers, into a decoder's parameters, each tensor straight to its place."""

import re
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from archerfish.errors import CheckpointError
from archerfish.models.decoder import Decoder
from archerfish.models.families.family import Family, Placement
from archerfish.models.layers import Norm
from archerfish.weights.checkpoint import Checkpoint, is_float

Progress = Callable[[float], None]
"""Called with the bytes filled so far."""

_SHOWN = 5
_NOISE_LENGTH = 1_048_573
"""A prime: rows of any width begin at another place of the noise, so no two of a matrix are alike."""


def load_weights(model: Decoder, family: Family, directory: Path, progress: Progress) -> None:
    """Fill every parameter from the directory's safetensors, or raise a CheckpointError that names what is wrong.

    Everything is checked against the files' headers before the first byte is copied.
    """
    places = list(family.places(model.arch))
    with Checkpoint(directory, family.renames) as checkpoint:
        _check_names(checkpoint, places, family, tied=model.arch.tie_embeddings)
        parameters = dict(model.named_parameters())
        _check_shapes(checkpoint, places, parameters)
        done = 0
        with torch.no_grad():
            for place in places:
                target = _part(parameters[place.target], place)
                target.copy_(_stored(checkpoint, place))
                done += target.nbytes
                progress(done)


def random_weights(model: Decoder, seed: int) -> None:
    """Random numbers that keep activations near 1 through any depth; norms as a freshly made model has them.

    One stretch of noise is laid out again and again, because drawing billions of numbers takes minutes.
    """
    table = model.embedding.weight
    noise = torch.empty(_NOISE_LENGTH, dtype=table.dtype, device=table.device)
    noise.normal_(generator=torch.Generator(device=table.device).manual_seed(seed))
    noise, first = noise.repeat(2), 0
    with torch.no_grad():
        for module in model.modules():
            for name, parameter in module.named_parameters(recurse=False):
                if parameter.dim() > 1:
                    # Going on where the last one ended makes no two layers alike.
                    period = noise[first : first + _NOISE_LENGTH]
                    _lay_out(period, parameter.shape[-1] ** -0.5, parameter.view(-1))
                    first = (first + parameter.numel()) % _NOISE_LENGTH
                else:
                    unit = 1.0 - module.spec.weight_offset if isinstance(module, Norm) else 0.0
                    parameter.fill_(unit if name == "weight" else 0.0)


def _lay_out(period: Tensor, scale: float, target: Tensor) -> None:
    """Fill the target with the period, scaled, over and over."""
    num_whole, num_left = divmod(len(target), len(period))
    whole, left = target[: num_whole * len(period)], target[num_whole * len(period) :]
    # Written straight to its place: a large model leaves no room for a copy.
    torch.mul(period.expand(num_whole, -1), scale, out=whole.view(num_whole, len(period)))
    torch.mul(period[:num_left], scale, out=left)


def _stored(checkpoint: Checkpoint, place: Placement) -> Tensor:
    tensor = checkpoint.read(place.source)
    return tensor if place.transform is None else place.transform(tensor)


def _part(parameter: Tensor, place: Placement) -> Tensor:
    if place.expert is not None:
        parameter = parameter[place.expert]
    return parameter if place.rows is None else parameter[place.rows]


def _check_names(checkpoint: Checkpoint, places: list[Placement], family: Family, *, tied: bool) -> None:
    wanted = {place.source for place in places}
    missing = sorted(wanted - set(checkpoint.tensors))
    ignored = [*family.ignored, *([r"(.*\.)?lm_head\.weight"] if tied else [])]
    unexpected = sorted(
        name for name in set(checkpoint.tensors) - wanted if not any(re.fullmatch(pattern, name) for pattern in ignored)
    )
    problems = [
        f"{len(names)} {what}: {_some(names)}"
        for what, names in (("missing", missing), ("unexpected", unexpected))
        if names
    ]
    if problems:
        raise CheckpointError(
            f"{checkpoint.directory} does not hold the weights config.json describes; tensors {'; '.join(problems)}"
        )


def _check_shapes(checkpoint: Checkpoint, places: list[Placement], parameters: dict[str, nn.Parameter]) -> None:
    wrong = []
    for place in places:
        stored = checkpoint.tensors[place.source]
        if not is_float(stored):
            raise CheckpointError(
                f"{place.source} is stored as {stored.dtype}; quantized checkpoints are not supported yet"
            )
        # A tensor without storage gives the shape after the transform at no cost.
        shape = torch.empty(stored.shape, device="meta")
        expected = _part(parameters[place.target], place).shape
        try:
            fits = (shape if place.transform is None else place.transform(shape)).shape == expected
        except (RuntimeError, IndexError):
            fits = False
        if not fits:
            wrong.append(f"{place.source} is {list(stored.shape)}, where {list(expected)} belongs")
    if wrong:
        raise CheckpointError(f"{checkpoint.directory}: {len(wrong)} tensors of the wrong shape: {_some(wrong)}")


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
