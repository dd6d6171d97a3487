"""Writes a Llama checkpoint of a real model's shape with random weights. Runs in the peers' environment.

python checkpoint.py CONFIG FOLDER
"""

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file


def main() -> None:
    config, folder = json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2])
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    width = config["num_attention_heads"] * config["head_dim"]
    kv_width = config["num_key_value_heads"] * config["head_dim"]
    shapes = {
        "self_attn.q_proj": (width, hidden),
        "self_attn.k_proj": (kv_width, hidden),
        "self_attn.v_proj": (kv_width, hidden),
        "self_attn.o_proj": (hidden, width),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }
    torch.manual_seed(0)
    ones = torch.ones(hidden, dtype=torch.bfloat16)
    tensors = {"model.embed_tokens.weight": _noise(config["vocab_size"], hidden), "model.norm.weight": ones}
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        tensors |= {f"{prefix}{name}.weight": _noise(*shape) for name, shape in shapes.items()}
        tensors |= {f"{prefix}{name}.weight": ones.clone() for name in ("input_layernorm", "post_attention_layernorm")}
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config))


def _noise(*shape: int) -> torch.Tensor:
    return (torch.randn(*shape) * 0.02).bfloat16()


if __name__ == "__main__":
    main()
