"""Writes a Llama checkpoint as a GGUF file, with a placeholder for the vocabulary. Runs in the peers' environment."""

import json
from pathlib import Path

import gguf
import numpy as np
from safetensors.torch import load_file

_NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
_OUTSIDE = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}


def write_gguf(checkpoint: Path, bits: int) -> Path:
    """Q8_0 or Q4_0, beside the checkpoint; kept for the next time."""
    path = checkpoint.with_name(f"{checkpoint.name}-q{bits}_0.gguf")
    if path.exists():
        return path
    config = json.loads((checkpoint / "config.json").read_text())
    kind = {4: gguf.GGMLQuantizationType.Q4_0, 8: gguf.GGMLQuantizationType.Q8_0}[bits]
    unfinished = path.with_suffix(".part")
    writer = gguf.GGUFWriter(str(unfinished), "llama")
    _describe(writer, config)
    for name, tensor in load_file(str(checkpoint / "model.safetensors")).items():
        array = _rotated_as_pairs(name, tensor.float().numpy(), config)
        if array.ndim == 1:
            writer.add_tensor(_target(name), array)
        else:
            writer.add_tensor(_target(name), gguf.quants.quantize(array, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return unfinished.rename(path)


def _describe(writer: gguf.GGUFWriter, config: dict[str, int]) -> None:
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(config["rope_theta"])
    size = config["vocab_size"]
    writer.add_vocab_size(size)
    writer.add_tokenizer_model("llama")
    writer.add_token_list([f"<t{token}>".encode() for token in range(size)])
    writer.add_token_scores([0.0] * size)
    writer.add_token_types([1] * size)


def _target(name: str) -> str:
    if name in _OUTSIDE:
        return _OUTSIDE[name]
    _, _, layer, *kind, _ = name.split(".")
    return f"blk.{layer}.{_NAMES['.'.join(kind)]}.weight"


def _rotated_as_pairs(name: str, rows: np.ndarray, config: dict[str, int]) -> np.ndarray:
    """llama.cpp keeps the two halves of a rotation side by side."""
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    count = next((heads[part] for part in name.split(".") if part in heads), None)
    if count is None:
        return rows
    return rows.reshape(count, 2, rows.shape[0] // count // 2, -1).swapaxes(1, 2).reshape(rows.shape)
