"""A tiny Llama that walks from each token to one other, almost surely: its drafters can be right every time."""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from archerfish.compress.drafters.options import DrafterOptions

VOCAB_SIZE = 12
CONFIG = {
    "model_type": "llama",
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
    "bos_token_id": 0,
}
STEP = 7
"""How far it walks: from t to t + 7, and once in some thousand steps to t + 8."""


def write_walker(directory: Path) -> Path:
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(CONFIG))
    save_file(_tensors(), directory / "model.safetensors", metadata={"format": "pt"})
    return directory


def options(output: Path, **given: object) -> DrafterOptions:
    """Small enough for a test."""
    usual = {"method": "draft_model", "samples": 32, "length": 24, "batch": 8, "depths": 3, "learning_rate": 0.01}
    return DrafterOptions(**{**usual, "output": str(output), **given})  # type: ignore[arg-type]


def _tensors() -> dict[str, torch.Tensor]:
    hidden = CONFIG["hidden_size"]
    generator = torch.Generator().manual_seed(0)
    made: dict[str, torch.Tensor] = {"model.norm.weight": torch.ones(hidden)}
    # Directions at right angles: no token is mistaken for another.
    table = torch.linalg.qr(torch.randn(hidden, hidden, generator=generator)).Q[:VOCAB_SIZE].contiguous()
    made["model.embed_tokens.weight"] = table
    walk = torch.roll(table, STEP, 0) + 0.3 * torch.roll(table, STEP + 1, 0)
    made["lm_head.weight"] = walk * 2
    for layer in range(CONFIG["num_hidden_layers"]):
        there = f"model.layers.{layer}."
        for norm in ("input_layernorm", "post_attention_layernorm"):
            made[f"{there}{norm}.weight"] = torch.ones(hidden)
        shapes = {"self_attn.q_proj": (32, 32), "self_attn.k_proj": (16, 32), "self_attn.v_proj": (16, 32)}
        shapes |= {"mlp.gate_proj": (32, 32), "mlp.up_proj": (32, 32)}
        for name, shape in shapes.items():
            made[f"{there}{name}.weight"] = torch.randn(shape, generator=generator)
        # The layers add next to nothing: a token's direction stays what it is, and its length is the norm's business.
        for name in ("self_attn.o_proj", "mlp.down_proj"):
            made[f"{there}{name}.weight"] = torch.randn(32, 32, generator=generator) * 1e-3
    return made
