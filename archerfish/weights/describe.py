"""Describes a model directory from config.json and the headers of its weights, without loading them or torch."""

import math
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from archerfish.arch.arch import Arch
from archerfish.errors import ModelError
from archerfish.models.families import Fields, find_family
from archerfish.weights.checkpoint import Stored, read_headers
from archerfish.weights.locate import read_config

# Others, such as F8_E4M3, have no name in settings and stay as they are.
_DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """Facts about a model; None for unknown ones."""

    family: str | None = None
    """The model_type of config.json."""
    num_parameters: int | None = None
    """Numbers in the weight files."""
    dtype: str | None = None
    """Dtype of most of them."""
    context_length: int | None = None
    problem: str | None = None
    """The reason why it cannot be loaded."""


def describe(directory: Path) -> Description:
    """Describe a model without loading it. Problems are returned, never raised."""
    family: object = None
    arch: Arch | None = None
    stored: list[Stored] = []
    problems: list[str] = []
    with _noting(problems):
        config = read_config(directory, {})
        family = config.get("model_type")
        arch = find_family(config).read(Fields(config))
    with _noting(problems):
        stored = read_headers(directory)
    return Description(
        family=family if isinstance(family, str) else None,
        num_parameters=sum(math.prod(tensor.shape) for tensor in stored) if stored else None,
        dtype=_dtype(stored),
        context_length=None if arch is None else arch.max_positions,
        problem=problems[0] if problems else None,
    )


@contextmanager
def _noting(problems: list[str]) -> Iterator[None]:
    try:
        yield
    except ModelError as error:
        problems.append(str(error))
    except OSError as error:
        problems.append(f"{error.filename} cannot be read ({error.strerror})")


def _dtype(stored: list[Stored]) -> str | None:
    sizes: Counter[str] = Counter()
    for tensor in stored:
        sizes[tensor.dtype] += math.prod(tensor.shape)
    most = max(sizes, key=lambda dtype: sizes[dtype], default=None)
    return most and _DTYPES.get(most, most)
