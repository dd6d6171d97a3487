"""The heads that guess for perch: reads what their own directories tell. Knows nothing of the card it goes into."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recipes.box.curves import MissingMeasurement, require

_TARGET = "perch"
_GUESSABLE = {"eagle": "draft_vocab_size", "medusa": "truncated_vocab_size"}
"""Where each says how many tokens it can guess, by its method."""


@dataclass(frozen=True)
class Head:
    """One of them, trained and measured."""

    num_parameters: int
    """That were trained."""
    num_bytes: int
    """Of its weights on disk."""
    num_guessable: int
    num_texts: int
    """It was trained on."""
    depths: Sequence[Mapping[str, float]]
    """Agreement and acceptance of each guess behind right ones."""


def read_heads(box: Path) -> dict[str, Head]:
    """By method, as training left them in the model's directory."""
    return {method: _read_head(box / _TARGET / method, method) for method in _GUESSABLE}


def _read_head(directory: Path, method: str) -> Head:
    step = f"archerfish train-draft --method {method} --model {_TARGET}"
    path = directory / "config.json"
    if not path.exists():
        raise MissingMeasurement(f"{directory} has no config.json (made by {step})")
    config: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    require([_GUESSABLE[method], "about"], config, str(path), step)
    about = config["about"]
    require(["num_parameters", "num_training", "score"], about, f"about in {path}", step)
    return Head(
        num_parameters=about["num_parameters"],
        num_bytes=sum(file.stat().st_size for file in directory.glob("*.safetensors")),
        num_guessable=config[_GUESSABLE[method]],
        num_texts=about["num_training"],
        depths=about["score"]["depths"],
    )
