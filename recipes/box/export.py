"""Saves a trained model in Hugging Face layout: config.json, bfloat16 safetensors, tokenizer, defaults."""

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import save_file

from archerfish.models.decoder import Decoder
from archerfish.models.families import find_family
from recipes.box.shapes import SHAPES

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")
_GENERATION = {
    "bos_token_id": 0,
    "eos_token_id": [0, 1],
    "pad_token_id": 0,
    # Small models digress: a little below 1, they stay with what they know.
    "do_sample": True,
    "temperature": 0.6,
    "top_p": 0.95,
}


def export(name: str, model: Decoder, tokenizer: Path, directory: Path) -> None:
    """Write everything that is needed to run the model to the directory."""
    directory.mkdir(parents=True, exist_ok=True)
    config = SHAPES[name]
    parameters = dict(model.named_parameters())
    tensors = {}
    for placement in find_family(config).placements(model.arch):
        assert placement.transform is None and placement.expert is None, "a plain Llama stores its matrices as they are"
        tensor = parameters[placement.target].detach()
        tensor = tensor if placement.rows is None else tensor[placement.rows]
        tensors[placement.source] = tensor.to("cpu", torch.bfloat16).contiguous().clone()
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    _write_json(directory / "config.json", config)
    _write_json(directory / "generation_config.json", _GENERATION)
    for file in _TOKENIZER_FILES:
        shutil.copyfile(tokenizer / file, directory / file)


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
