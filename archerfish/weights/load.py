"""Brings a checkpoint, or random numbers, into a decoder's parameters, each tensor straight to its place."""

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import torch
from torch import Tensor

from archerfish.errors import CheckpointError
from archerfish.models.decoder import Decoder
from archerfish.models.families.family import Family, Placement
from archerfish.models.layers import Norm
from archerfish.weights.checkpoint import Checkpoint, is_float

Progress = Callable[[float], None]
"""Called with the bytes filled so far."""

Keep = Callable[[str, Tensor], None]
"""Called with a parameter's name and its numbers, in full: to put them into the model in another form."""

_SHOWN = 5
_NOISE_LENGTH = 1_048_573
"""A prime: rows of any width begin at another place of the noise, so no two of a matrix are alike."""


def load_weights(
    model: Decoder,
    family: Family,
    directory: Path,
    progress: Progress,
    keep: Keep | None = None,
    device: str = "cpu",
) -> None:
    """Fill every parameter from the directory's safetensors, or raise a CheckpointError that names what is wrong.

    Everything is checked against the files' headers before the first byte is copied. A model without memory of its own
    (on torch's meta device) needs `keep`: no more than one parameter is then in memory, on the device that is named,
    beside what that makes of it.
    """
    places = list(family.places(model.arch))
    with Checkpoint(directory, family.renames) as checkpoint:
        tied = [r"(.*\.)?lm_head\.weight"] if model.arch.tie_embeddings else []
        check_names(directory, places, set(checkpoint.tensors), [*family.ignored, *tied])
        _check_formats(checkpoint, places)
        parameters = dict(model.named_parameters())
        shapes = {name: stored.shape for name, stored in checkpoint.tensors.items()}
        check_shapes(directory, places, shapes, parameters)
        fill(parameters, places, checkpoint.read, progress, keep, device)


def fill(
    parameters: Mapping[str, Tensor],
    places: Iterable[Placement],
    read: Callable[[str], Tensor],
    progress: Progress = lambda _: None,
    keep: Keep | None = None,
    device: str = "cpu",
) -> None:
    """Every parameter that has a place, with what is read by the names of its sources."""
    done = 0
    with torch.no_grad():
        for name, parts in _by_target(places).items():
            target = room(parameters[name], device)
            for place in parts:
                part = _part(target, place)
                part.copy_(_stored(read, place))
                done += part.nbytes
                progress(done)
            if keep is not None:
                keep(name, target)


def random_weights(model: Decoder, seed: int, keep: Keep | None = None, device: str = "cpu") -> None:
    """Random numbers that keep activations near 1 through any depth; norms as a freshly made model has them.

    One stretch of noise is laid out again and again, because drawing billions of numbers takes minutes.
    """
    table = model.embedding.weight
    where = torch.device(device) if table.is_meta else table.device
    noise = torch.empty(_NOISE_LENGTH, dtype=table.dtype, device=where)
    noise.normal_(generator=torch.Generator(device=where).manual_seed(seed))
    noise, first = noise.repeat(2), 0
    with torch.no_grad():
        for name, parameter in list(model.named_parameters()):
            target = room(parameter, device)
            if target.dim() > 1:
                # Going on where the last one ended makes no two layers alike.
                period = noise[first : first + _NOISE_LENGTH]
                _lay_out(period, target.shape[-1] ** -0.5, target.view(-1))
                first = (first + target.numel()) % _NOISE_LENGTH
            else:
                target.fill_(_unit(model, name))
            if keep is not None:
                keep(name, target)


def _unit(model: Decoder, name: str) -> float:
    """What leaves activations as they are: 1 for the weight of a norm, 0 for every bias."""
    holder, _, field = name.rpartition(".")
    module = model.get_submodule(holder)
    return 1.0 - module.spec.weight_offset if isinstance(module, Norm) and field == "weight" else 0.0


def room(parameter: Tensor, device: str) -> Tensor:
    """The parameter itself, or memory for its numbers where it has none."""
    if parameter.is_meta:
        return torch.empty(parameter.shape, dtype=parameter.dtype, device=device)
    return parameter.data


def _by_target(places: Iterable[Placement]) -> dict[str, list[Placement]]:
    found: dict[str, list[Placement]] = {}
    for place in places:
        found.setdefault(place.target, []).append(place)
    return found


def _lay_out(period: Tensor, scale: float, target: Tensor) -> None:
    """Fill the target with the period, scaled, over and over."""
    num_whole, num_left = divmod(len(target), len(period))
    whole, left = target[: num_whole * len(period)], target[num_whole * len(period) :]
    # Written straight to its place: a large model leaves no room for a copy.
    torch.mul(period.expand(num_whole, -1), scale, out=whole.view(num_whole, len(period)))
    torch.mul(period[:num_left], scale, out=left)


def _stored(read: Callable[[str], Tensor], place: Placement) -> Tensor:
    tensor = read(place.source)
    return tensor if place.transform is None else place.transform(tensor)


def _part(parameter: Tensor, place: Placement) -> Tensor:
    if place.expert is not None:
        parameter = parameter[place.expert]
    return parameter if place.rows is None else parameter[place.rows]


def check_names(directory: Path, places: Iterable[Placement], found: set[str], ignored: Iterable[str]) -> None:
    """Every tensor has a place and every place its tensor; `ignored` are regular expressions of others."""
    wanted = {place.source for place in places}
    patterns = list(ignored)
    missing = sorted(wanted - found)
    unexpected = sorted(name for name in found - wanted if not any(re.fullmatch(one, name) for one in patterns))
    problems = [
        f"{len(names)} {what}: {_some(names)}"
        for what, names in (("missing", missing), ("unexpected", unexpected))
        if names
    ]
    if problems:
        raise CheckpointError(
            f"{directory} does not hold the weights config.json describes; tensors {'; '.join(problems)}"
        )


def _check_formats(checkpoint: Checkpoint, places: Iterable[Placement]) -> None:
    for place in places:
        stored = checkpoint.tensors[place.source]
        if not is_float(stored):
            raise CheckpointError(
                f"{place.source} is stored as {stored.dtype}; quantized checkpoints are not supported yet"
            )


def check_shapes(
    directory: Path,
    places: Iterable[Placement],
    shapes: Mapping[str, tuple[int, ...]],
    parameters: Mapping[str, Tensor],
) -> None:
    wrong = []
    for place in places:
        # A tensor without storage gives the shape after the transform at no cost.
        shape = torch.empty(shapes[place.source], device="meta")
        expected = _part(parameters[place.target], place).shape
        try:
            fits = (shape if place.transform is None else place.transform(shape)).shape == expected
        except (RuntimeError, IndexError):
            fits = False
        if not fits:
            wrong.append(f"{place.source} is {list(shapes[place.source])}, where {list(expected)} belongs")
    if wrong:
        raise CheckpointError(f"{directory}: {len(wrong)} tensors of the wrong shape: {_some(wrong)}")


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
