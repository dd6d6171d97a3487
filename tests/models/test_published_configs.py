"""Configs as published models have them, older spellings included: read whole, and of the size their makers state."""

from typing import Any, NamedTuple

import pytest

from archerfish.arch.arch import Arch
from archerfish.arch.cost import kv_bytes_per_token, num_active_parameters, num_parameters
from archerfish.errors import UnsupportedModel
from archerfish.models.families import Fields, find_family

COMMON = {
    "architectures": ["SomethingForCausalLM"],
    "torch_dtype": "bfloat16",
    "transformers_version": "4.43.0",
    "use_cache": True,
    "initializer_range": 0.02,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LLAMA3_ROPE = {
    "factor": 32.0,
    "high_freq_factor": 4.0,
    "low_freq_factor": 1.0,
    "original_max_position_embeddings": 8192,
    "rope_type": "llama3",
}
LLAMA = {
    "model_type": "llama",
    "hidden_act": "silu",
    "attention_bias": False,
    "attention_dropout": 0.0,
    "pretraining_tp": 1,
}


class Published(NamedTuple):
    num_parameters: int
    max_positions: int
    config: dict[str, Any]


PUBLISHED = {
    "Llama-2-7b": Published(
        6_738_415_616,
        4096,
        {
            **LLAMA,
            "vocab_size": 32000,
            "hidden_size": 4096,
            "intermediate_size": 11008,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 32,
            "max_position_embeddings": 4096,
            "rms_norm_eps": 1e-05,
            "rope_scaling": None,
            "tie_word_embeddings": False,
        },
    ),
    "Llama-3.2-1B": Published(
        1_235_814_400,
        131072,
        {
            **LLAMA,
            "vocab_size": 128256,
            "hidden_size": 2048,
            "head_dim": 64,
            "intermediate_size": 8192,
            "num_hidden_layers": 16,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "max_position_embeddings": 131072,
            "mlp_bias": False,
            "rms_norm_eps": 1e-05,
            "rope_scaling": LLAMA3_ROPE,
            "rope_theta": 500000.0,
            "tie_word_embeddings": True,
        },
    ),
    "Mistral-7B-v0.1": Published(
        7_241_732_096,
        32768,
        {
            "model_type": "mistral",
            "hidden_act": "silu",
            "vocab_size": 32000,
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "max_position_embeddings": 32768,
            "rms_norm_eps": 1e-05,
            "rope_theta": 10000.0,
            "sliding_window": 4096,
            "tie_word_embeddings": False,
        },
    ),
    "Mixtral-8x7B": Published(
        46_702_792_704,
        32768,
        {
            "model_type": "mixtral",
            "attention_dropout": 0.0,
            "hidden_act": "silu",
            "vocab_size": 32000,
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "num_experts_per_tok": 2,
            "num_local_experts": 8,
            "max_position_embeddings": 32768,
            "output_router_logits": False,
            "rms_norm_eps": 1e-05,
            "rope_theta": 1000000.0,
            "router_aux_loss_coef": 0.02,
            "sliding_window": None,
            "tie_word_embeddings": False,
        },
    ),
    "Qwen2.5-0.5B": Published(
        494_032_768,
        32768,
        {
            "model_type": "qwen2",
            "hidden_act": "silu",
            "vocab_size": 151936,
            "hidden_size": 896,
            "intermediate_size": 4864,
            "num_hidden_layers": 24,
            "num_attention_heads": 14,
            "num_key_value_heads": 2,
            "max_position_embeddings": 32768,
            "max_window_layers": 24,
            "rms_norm_eps": 1e-06,
            "rope_theta": 1000000.0,
            "sliding_window": 32768,
            "use_sliding_window": False,
            "use_mrope": False,
            "tie_word_embeddings": True,
        },
    ),
    "Qwen3-0.6B": Published(
        596_049_920,
        40960,
        {
            "model_type": "qwen3",
            "attention_bias": False,
            "attention_dropout": 0.0,
            "head_dim": 128,
            "hidden_act": "silu",
            "vocab_size": 151936,
            "hidden_size": 1024,
            "intermediate_size": 3072,
            "num_hidden_layers": 28,
            "num_attention_heads": 16,
            "num_key_value_heads": 8,
            "max_position_embeddings": 40960,
            "max_window_layers": 28,
            "rms_norm_eps": 1e-06,
            "rope_scaling": None,
            "rope_theta": 1000000,
            "sliding_window": None,
            "use_sliding_window": False,
            "tie_word_embeddings": True,
        },
    ),
    "Qwen3-30B-A3B": Published(
        30_532_122_624,
        40960,
        {
            "model_type": "qwen3_moe",
            "attention_bias": False,
            "attention_dropout": 0.0,
            "decoder_sparse_step": 1,
            "head_dim": 128,
            "hidden_act": "silu",
            "vocab_size": 151936,
            "hidden_size": 2048,
            "intermediate_size": 6144,
            "max_position_embeddings": 40960,
            "max_window_layers": 48,
            "mlp_only_layers": [],
            "moe_intermediate_size": 768,
            "norm_topk_prob": True,
            "num_attention_heads": 32,
            "num_experts": 128,
            "num_experts_per_tok": 8,
            "num_hidden_layers": 48,
            "num_key_value_heads": 4,
            "output_router_logits": False,
            "rms_norm_eps": 1e-06,
            "rope_scaling": None,
            "rope_theta": 1000000.0,
            "router_aux_loss_coef": 0.001,
            "sliding_window": None,
            "use_sliding_window": False,
            "tie_word_embeddings": False,
        },
    ),
    "gemma-2-2b": Published(
        2_614_341_888,
        8192,
        {
            "model_type": "gemma2",
            "attention_bias": False,
            "attention_dropout": 0.0,
            "attn_logit_softcapping": 50.0,
            "cache_implementation": "hybrid",
            "final_logit_softcapping": 30.0,
            "head_dim": 256,
            "hidden_act": "gelu_pytorch_tanh",
            "hidden_activation": "gelu_pytorch_tanh",
            "vocab_size": 256000,
            "hidden_size": 2304,
            "intermediate_size": 9216,
            "max_position_embeddings": 8192,
            "num_attention_heads": 8,
            "num_hidden_layers": 26,
            "num_key_value_heads": 4,
            "query_pre_attn_scalar": 256,
            "rms_norm_eps": 1e-06,
            "rope_theta": 10000.0,
            "sliding_window": 4096,
        },
    ),
    "gemma-3-1b": Published(
        999_885_952,
        32768,
        {
            "model_type": "gemma3_text",
            "attention_bias": False,
            "attention_dropout": 0.0,
            "attn_logit_softcapping": None,
            "cache_implementation": "hybrid",
            "final_logit_softcapping": None,
            "head_dim": 256,
            "hidden_activation": "gelu_pytorch_tanh",
            "vocab_size": 262144,
            "hidden_size": 1152,
            "intermediate_size": 6912,
            "max_position_embeddings": 32768,
            "num_attention_heads": 4,
            "num_hidden_layers": 26,
            "num_key_value_heads": 1,
            "query_pre_attn_scalar": 256,
            "rms_norm_eps": 1e-06,
            "rope_local_base_freq": 10000,
            "rope_scaling": None,
            "rope_theta": 1000000,
            "sliding_window": 512,
            "sliding_window_pattern": 6,
        },
    ),
    "gemma-3-4b (its text part)": Published(
        3_880_263_168,
        131072,
        {
            "model_type": "gemma3",
            "boi_token_index": 255999,
            "eoi_token_index": 256000,
            "image_token_index": 262144,
            "mm_tokens_per_image": 256,
            "text_config": {
                "hidden_size": 2560,
                "intermediate_size": 10240,
                "model_type": "gemma3_text",
                "num_hidden_layers": 34,
                "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
                "sliding_window": 1024,
            },
            "vision_config": {"hidden_size": 1152, "model_type": "siglip_vision_model"},
        },
    ),
    "Phi-3-mini-128k": Published(
        3_821_079_552,
        131072,
        {
            "model_type": "phi3",
            "attention_bias": False,
            "attention_dropout": 0.0,
            "auto_map": {},
            "embd_pdrop": 0.0,
            "resid_pdrop": 0.0,
            "hidden_act": "silu",
            "vocab_size": 32064,
            "hidden_size": 3072,
            "intermediate_size": 8192,
            "max_position_embeddings": 131072,
            "num_attention_heads": 32,
            "num_hidden_layers": 32,
            "num_key_value_heads": 32,
            "original_max_position_embeddings": 4096,
            "pad_token_id": 32000,
            "rms_norm_eps": 1e-05,
            "rope_scaling": {"long_factor": [2.0] * 48, "short_factor": [1.0] * 48, "type": "longrope"},
            "rope_theta": 10000.0,
            "sliding_window": 262144,
            "tie_word_embeddings": False,
        },
    ),
    "Phi-4-mini": Published(
        3_836_021_760,
        131072,
        {
            "model_type": "phi3",
            "attention_bias": False,
            "attention_dropout": 0.0,
            "embd_pdrop": 0.0,
            "resid_pdrop": 0.0,
            "full_attn_mod": 1,
            "hidden_act": "silu",
            "vocab_size": 200064,
            "hidden_size": 3072,
            "intermediate_size": 8192,
            "interpolate_factor": 1,
            "lm_head_bias": False,
            "max_position_embeddings": 131072,
            "mlp_bias": False,
            "num_attention_heads": 24,
            "num_hidden_layers": 32,
            "num_key_value_heads": 8,
            "original_max_position_embeddings": 4096,
            "partial_rotary_factor": 0.75,
            "rms_norm_eps": 1e-05,
            "rope_scaling": {"long_factor": [2.0] * 48, "short_factor": [1.0] * 48, "type": "longrope"},
            "rope_theta": 10000.0,
            "sliding_window": 262144,
            "tie_word_embeddings": True,
        },
    ),
    "OLMo-2-1B": Published(
        1_484_916_736,
        4096,
        {
            "model_type": "olmo2",
            "attention_bias": False,
            "attention_dropout": 0.0,
            "hidden_act": "silu",
            "vocab_size": 100352,
            "hidden_size": 2048,
            "intermediate_size": 8192,
            "max_position_embeddings": 4096,
            "num_attention_heads": 16,
            "num_hidden_layers": 16,
            "num_key_value_heads": 16,
            "rms_norm_eps": 1e-06,
            "rope_scaling": None,
            "rope_theta": 500000,
            "tie_word_embeddings": False,
        },
    ),
    "SmolLM3-3B": Published(
        3_075_098_624,
        65536,
        {
            "model_type": "smollm3",
            "attention_bias": False,
            "attention_dropout": 0.0,
            "hidden_act": "silu",
            "vocab_size": 128256,
            "hidden_size": 2048,
            "intermediate_size": 11008,
            "layer_types": ["full_attention"] * 36,
            "max_position_embeddings": 65536,
            "max_window_layers": 28,
            "mlp_bias": False,
            "no_rope_layer_interval": 4,
            "no_rope_layers": [1, 1, 1, 0] * 9,
            "num_attention_heads": 16,
            "num_hidden_layers": 36,
            "num_key_value_heads": 4,
            "pretraining_tp": 2,
            "rms_norm_eps": 1e-06,
            "rope_scaling": None,
            "rope_theta": 5000000.0,
            "sliding_window": None,
            "use_sliding_window": False,
        },
    ),
    "granite-3.1-2b": Published(
        2_533_531_648,
        131072,
        {
            "model_type": "granite",
            "attention_bias": False,
            "attention_dropout": 0.1,
            "attention_multiplier": 0.015625,
            "embedding_multiplier": 12.0,
            "hidden_act": "silu",
            "vocab_size": 49155,
            "hidden_size": 2048,
            "intermediate_size": 8192,
            "logits_scaling": 8.0,
            "max_position_embeddings": 131072,
            "mlp_bias": False,
            "num_attention_heads": 32,
            "num_hidden_layers": 40,
            "num_key_value_heads": 8,
            "residual_multiplier": 0.22,
            "rms_norm_eps": 1e-05,
            "rope_scaling": None,
            "rope_theta": 5000000.0,
            "tie_word_embeddings": True,
        },
    ),
    "gpt2": Published(
        124_439_808,
        1024,
        {
            "model_type": "gpt2",
            "activation_function": "gelu_new",
            "attn_pdrop": 0.1,
            "embd_pdrop": 0.1,
            "layer_norm_epsilon": 1e-05,
            "n_ctx": 1024,
            "n_embd": 768,
            "n_head": 12,
            "n_layer": 12,
            "n_positions": 1024,
            "resid_pdrop": 0.1,
            "summary_activation": None,
            "summary_first_dropout": 0.1,
            "summary_proj_to_labels": True,
            "summary_type": "cls_index",
            "summary_use_proj": True,
            "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}},
            "vocab_size": 50257,
        },
    ),
    "falcon-7b": Published(
        6_921_720_704,
        2048,
        {
            "model_type": "falcon",
            "alibi": False,
            "apply_residual_connection_post_layernorm": False,
            "attention_dropout": 0.0,
            "bias": False,
            "hidden_dropout": 0.0,
            "hidden_size": 4544,
            "layer_norm_epsilon": 1e-05,
            "multi_query": True,
            "new_decoder_architecture": False,
            "num_attention_heads": 71,
            "num_hidden_layers": 32,
            "parallel_attn": True,
            "vocab_size": 65024,
        },
    ),
    "starcoder2-3b": Published(
        3_030_371_328,
        16384,
        {
            "model_type": "starcoder2",
            "attention_dropout": 0.1,
            "embedding_dropout": 0.1,
            "hidden_act": "gelu_pytorch_tanh",
            "hidden_size": 3072,
            "intermediate_size": 12288,
            "max_position_embeddings": 16384,
            "mlp_type": "default",
            "norm_epsilon": 1e-05,
            "norm_type": "layer_norm",
            "num_attention_heads": 24,
            "num_hidden_layers": 30,
            "num_key_value_heads": 2,
            "residual_dropout": 0.1,
            "rope_theta": 999999.4420358813,
            "sliding_window": 4096,
            "use_bias": True,
            "vocab_size": 49152,
        },
    ),
}


def read_config(config: dict[str, Any]) -> Arch:
    return find_family(config).read(Fields(config))


def read(name: str, **changes: object) -> Arch:
    return read_config({**COMMON, **PUBLISHED[name].config, **changes})


def read_without(name: str, *left_out: str) -> Arch:
    config = {**COMMON, **PUBLISHED[name].config}
    return read_config({field: value for field, value in config.items() if field not in left_out})


def windows(arch: Arch) -> list[int | None]:
    return [layer.attention.window for layer in arch.layers]


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_configs_are_read_whole_and_counted_right(name: str) -> None:
    arch = read(name)
    assert num_parameters(arch) == PUBLISHED[name].num_parameters
    assert arch.max_positions == PUBLISHED[name].max_positions


def test_what_each_makes_of_its_layers() -> None:
    assert windows(read("gemma-3-1b"))[:6] == [512] * 5 + [None] and windows(read("gemma-3-1b")).count(None) == 4
    ropes = [layer.attention.rope for layer in read("gemma-3-4b (its text part)").layers]
    assert {(r.theta, r.kind) for r in ropes if r is not None} == {(10000.0, "default"), (1000000.0, "linear")}
    assert windows(read("gemma-2-2b"))[:3] == [4096, None, 4096]
    assert set(windows(read("Qwen2.5-0.5B"))) == {None}
    assert {layer.attention.num_kv_heads for layer in read("falcon-7b").layers} == {1}
    assert [layer.attention.rope is None for layer in read("SmolLM3-3B").layers][:5] == [
        False,
        False,
        False,
        True,
        False,
    ]
    rope = read("Phi-4-mini").layers[0].attention.rope
    assert rope is not None and rope.dim == 96
    assert read("granite-3.1-2b").logit_multiplier == 0.125


def test_known_costs_of_published_models() -> None:
    assert kv_bytes_per_token(read("Llama-2-7b"), 2) * 4096 == pytest.approx(2.147e9, rel=1e-3)
    assert num_active_parameters(read("Qwen3-30B-A3B")) == pytest.approx(3.04e9, rel=0.02)


# What transformers' own configuration classes say of a field that config.json leaves out.
LENGTHS_LEFT_OUT = {
    "Llama-2-7b": 2048,
    "Mistral-7B-v0.1": 131072,
    "Mixtral-8x7B": 131072,
    "Qwen2.5-0.5B": 32768,
    "Qwen3-0.6B": 32768,
    "Qwen3-30B-A3B": 32768,
    "gemma-2-2b": 8192,
    "gemma-3-1b": 131072,
    "OLMo-2-1B": 2048,
    "SmolLM3-3B": 32768,
    "granite-3.1-2b": 2048,
    "starcoder2-3b": 4096,
}


@pytest.mark.parametrize("name", LENGTHS_LEFT_OUT)
def test_a_length_left_out_is_the_familys_own(name: str) -> None:
    transformers = pytest.importorskip("transformers")
    known = transformers.AutoConfig.for_model(PUBLISHED[name].config["model_type"])
    assert known.max_position_embeddings == LENGTHS_LEFT_OUT[name]
    assert read_without(name, "max_position_embeddings").max_positions == LENGTHS_LEFT_OUT[name]


def test_a_length_of_null_is_refused() -> None:
    with pytest.raises(UnsupportedModel, match="max_position_embeddings"):
        read("Llama-2-7b", max_position_embeddings=None)


@pytest.mark.parametrize(
    ("name", "left_out"),
    [
        ("Mistral-7B-v0.1", 4096),
        ("Mixtral-8x7B", None),
        ("Phi-3-mini-128k", None),
        ("starcoder2-3b", None),
        ("gemma-2-2b", 4096),
        ("gemma-3-1b", 4096),
        ("Qwen3-0.6B", None),
    ],
)
def test_a_window_left_out_is_the_familys_own(name: str, left_out: int | None) -> None:
    assert windows(read_without(name, "sliding_window"))[0] == left_out


@pytest.mark.parametrize("name", ["Mistral-7B-v0.1", "Mixtral-8x7B", "Phi-3-mini-128k", "starcoder2-3b"])
def test_a_window_of_null_is_none(name: str) -> None:
    assert set(windows(read(name, sliding_window=None))) == {None}


def test_the_windows_of_qwen_start_where_each_of_them_says() -> None:
    changes = {"use_sliding_window": True, "max_window_layers": 20}
    dense = [None] * 20 + [4096] * 8
    config = {**COMMON, **PUBLISHED["Qwen3-0.6B"].config, **changes}
    assert windows(read_config({k: v for k, v in config.items() if k != "sliding_window"})) == dense
    assert windows(read_config({**config, "sliding_window": 4096})) == dense
    assert set(windows(read_config({**config, "sliding_window": None}))) == {None}
    # The layers with experts have it everywhere.
    assert set(windows(read("Qwen3-30B-A3B", sliding_window=64, **changes))) == {64}


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("gemma-2-2b", {"sliding_window": None}),
        ("gemma-3-1b", {"sliding_window": None}),
        ("Mistral-7B-v0.1", {"sliding_window": None, "layer_types": ["sliding_attention"] * 32}),
        ("Qwen3-0.6B", {"layer_types": ["sliding_attention"] * 28}),
        ("SmolLM3-3B", {"layer_types": ["sliding_attention"] * 36}),
    ],
)
def test_layers_with_a_window_but_no_window_are_refused(name: str, changes: dict[str, object]) -> None:
    with pytest.raises(UnsupportedModel, match="sliding_attention but no sliding_window"):
        read(name, **changes)


def test_soft_caps_of_gemma_2_are_there_unless_null_says_otherwise() -> None:
    caps = ("attn_logit_softcapping", "final_logit_softcapping")
    left_out = read_without("gemma-2-2b", *caps)
    assert (left_out.layers[0].attention.softcap, left_out.logit_softcap) == (50.0, 30.0)
    without = read("gemma-2-2b", **dict.fromkeys(caps))
    assert (without.layers[0].attention.softcap, without.logit_softcap) == (None, None)
    gemma3 = read_without("gemma-3-1b", *caps)
    assert (gemma3.layers[0].attention.softcap, gemma3.logit_softcap) == (None, None)


def test_other_numbers_left_out_are_the_familys_own() -> None:
    mixtral = read_without("Mixtral-8x7B", "rms_norm_eps", "rope_theta")
    rope = mixtral.layers[0].attention.rope
    assert mixtral.norm.eps == 1e-5 and rope is not None and rope.theta == 1_000_000.0
    assert read_without("Phi-3-mini-128k", "rms_norm_eps").norm.eps == 1e-5
    assert read_without("gemma-2-2b", "head_dim").layers[0].attention.head_dim == 256
    assert read_without("Qwen3-0.6B", "head_dim").layers[0].attention.head_dim == 128


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        (
            "Llama-3.2-1B",
            {"is_llama_config": True, "rope_interleaved": False, "transformers.js_config": {"dtype": "q4"}},
        ),
        ("Llama-2-7b", {"max_sequence_length": 2048}),
        ("gemma-2-2b", {"sliding_window_size": 4096}),
        ("gpt2", {"n_special": 0, "predict_special_tokens": True, "output_past": True, "_num_labels": 1}),
    ],
)
def test_fields_without_effect_are_let_through(name: str, changes: dict[str, object]) -> None:
    assert read(name, **changes) == read(name)


@pytest.mark.parametrize(
    ("name", "changes", "named"),
    [
        ("Llama-3.2-1B", {"rope_interleaved": True}, "rope_interleaved"),
        ("Llama-3.2-1B", {"quantization": {"group_size": 64, "bits": 4}}, "quantized checkpoints are not supported"),
        ("gemma-2-2b", {"sliding_window_size": 2048}, "sliding_window_size = 2048 .* it must be 4096"),
        ("Llama-3.2-1B", {"rope_scaling": "yarn"}, "rope_scaling = 'yarn' .* an object"),
        ("Llama-3.2-1B", {"rope_parameters": [1]}, "rope_parameters = .* an object"),
        ("Llama-3.2-1B", {"num_hidden_layers": 10**30}, "num_hidden_layers = .* from 1 to 10000"),
    ],
)
def test_fields_with_an_effect_are_not(name: str, changes: dict[str, object], named: str) -> None:
    with pytest.raises(UnsupportedModel, match=named):
        read(name, **changes)
