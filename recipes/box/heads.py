"""Reads the sizes and scores of perch's draft heads from their directories."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recipes.box.curves import MissingMeasurement, require

_TARGET = "perch"
_DRAFT_VOCABULARY = {"eagle": "draft_vocab_size", "medusa": "truncated_vocab_size"}
"""Config field with the number of tokens that a head can draft, by method."""


@dataclass(frozen=True)
class Head:
    """A trained and measured draft head."""

    num_parameters: int
    """Number of trained parameters."""
    num_bytes: int
    """Bytes of its weights on disk."""
    num_draftable: int
    num_texts: int
    """Number of texts that it was trained on."""
    depths: Sequence[Mapping[str, float]]
    """Agreement and acceptance of each draft token that follows accepted ones."""


def read_heads(box: Path) -> dict[str, Head]:
    """Return the heads in the model's directory, by method."""
    return {method: _read_head(box / _TARGET / method, method) for method in _DRAFT_VOCABULARY}


def _read_head(directory: Path, method: str) -> Head:
    step = f"archerfish train-draft --method {method} --model {_TARGET}"
    path = directory / "config.json"
    if not path.exists():
        raise MissingMeasurement(f"{directory} has no config.json (made by {step})")
    config: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    require([_DRAFT_VOCABULARY[method], "about"], config, str(path), step)
    about = config["about"]
    require(["num_parameters", "num_training", "score"], about, f"about in {path}", step)
    return Head(
        num_parameters=about["num_parameters"],
        num_bytes=sum(file.stat().st_size for file in directory.glob("*.safetensors")),
        num_draftable=config[_DRAFT_VOCABULARY[method]],
        num_texts=about["num_training"],
        depths=about["score"]["depths"],
    )
