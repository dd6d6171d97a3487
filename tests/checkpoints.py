"""A tiny Llama on disk with a real tokenizer, written without transformers, for tests that need a whole model."""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from archerfish.models.decoder import Decoder
from archerfish.models.families import Fields, find_family
from archerfish.ops import KernelTarget, choose_ops
from archerfish.weights.load import random_weights

CONFIG = {
    "model_type": "llama",
    "vocab_size": 300,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
    "eos_token_id": 1,
}
CHAT_TEMPLATE = (
    "{% for m in messages %}<s>{{ m.role }}: {{ m.content }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<s>{% endif %}"
)
_TEXT = ["The quick brown fox jumps over the lazy dog. Ça va? 你好，世界 🐟 Привет!"] * 4


def write_checkpoint(directory: Path) -> Path:
    """config.json, model.safetensors, tokenizer.json, tokenizer_config.json."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(CONFIG))
    write_weights(directory)
    write_tokenizer(directory)
    return directory


def tensors() -> dict[str, torch.Tensor]:
    """Random weights under the names a Llama checkpoint uses."""
    family = find_family(CONFIG)
    arch = family.read(Fields(CONFIG))
    ops, _ = choose_ops(KernelTarget(device="cpu", dtype="float32"))
    model = Decoder(arch, ops, 16)
    random_weights(model, seed=0)
    parameters = dict(model.named_parameters())
    named = {}
    for place in family.placements(arch):
        value = parameters[place.target].detach()
        named[place.source] = (value if place.rows is None else value[place.rows]).clone()
    return named


def write_weights(directory: Path) -> None:
    save_file(tensors(), directory / "model.safetensors", metadata={"format": "pt"})


def write_tokenizer(directory: Path) -> None:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<s>", "</s>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(_TEXT, trainer)
    tokenizer.save(str(directory / "tokenizer.json"))
    settings = {"bos_token": "<s>", "eos_token": "</s>", "chat_template": CHAT_TEMPLATE}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
