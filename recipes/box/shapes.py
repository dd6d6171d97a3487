"""The two models' shapes, as their config.json has them."""

from typing import Any

VOCAB_SIZE = 8192
CONTEXT = 1024

_COMMON = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": VOCAB_SIZE,
    "max_position_embeddings": CONTEXT,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "attention_bias": False,
    "mlp_bias": False,
    "torch_dtype": "bfloat16",
    "bos_token_id": 0,
    "eos_token_id": [0, 1],
    "pad_token_id": 0,
}

SHAPES: dict[str, dict[str, Any]] = {
    # 12.1 M parameters: every width a multiple of 64, so that blocked kernels have no ragged edges.
    "perch": {
        **_COMMON,
        "hidden_size": 384,
        "intermediate_size": 960,
        "num_hidden_layers": 6,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 64,
    },
    # 1.9 M parameters, more than half of them embeddings: it must know the words, not the world.
    "minnow": {
        **_COMMON,
        "hidden_size": 128,
        "intermediate_size": 448,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
    },
}
