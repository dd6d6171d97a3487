"""Gemma 2 and Gemma 3 (text): norms on both sides, windows on most layers, scaled embeddings, soft caps."""

import re

from archerfish.arch.arch import Arch, AttentionSpec, LayerSpec, NormSpec
from archerfish.arch.rope import RopeSpec
from archerfish.models.families.family import Family, Names
from archerfish.models.families.fields import Fields
from archerfish.models.families.llama import arch, attention, gated_mlp

# Fields that published multimodal Gemma 3 configs leave out of their text part.
_GEMMA3_DEFAULTS = {
    "vocab_size": 262208,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 131072,
    "sliding_window": 4096,
}


def _read_gemma2(fields: Fields) -> Arch:
    fields.assume(max_position_embeddings=8192, sliding_window=4096, head_dim=256)
    fields.assume(attn_logit_softcapping=50.0, final_logit_softcapping=30.0)
    num_layers = fields.num_layers()
    alternating = ["full_attention" if index % 2 else "sliding_attention" for index in range(num_layers)]
    rope = fields.rope(fields.head_dim())
    window = fields.window()
    fields.only("sliding_window_size", window)  # Repeats the number in gemma-2-9b.
    windows = fields.windows(num_layers, window, alternating)
    return _gemma(fields, [_attention(fields, rope, window, None) for window in windows])


def _read_gemma3_text(fields: Fields) -> Arch:
    fields.assume(**_GEMMA3_DEFAULTS)
    fields.only("use_bidirectional_attention", False)
    num_layers = fields.num_layers()
    pattern = fields.integer("sliding_window_pattern", fields.integer("_sliding_window_pattern", 6))
    default = ["sliding_attention" if (index + 1) % pattern else "full_attention" for index in range(num_layers)]
    far, near = fields.rope(fields.head_dim(), 1_000_000.0, "full_attention"), _near_rope(fields)
    windows = fields.windows(num_layers, fields.window(), default)
    return _gemma(fields, [_attention(fields, far if w is None else near, w, "head") for w in windows])


def _read_gemma3(fields: Fields) -> Arch:
    """Read the language model inside a multimodal checkpoint."""
    text = fields.group("text_config", required=True)
    fields.skip("vision_config", "mm_tokens_per_image", "boi_token_index", "eoi_token_index", "image_token_index")
    fields.skip("tie_word_embeddings")
    fields.finish()
    return _read_gemma3_text(Fields({**text, "model_type": "gemma3_text"}))


def _near_rope(fields: Fields) -> RopeSpec:
    """Return the rotation of layers with a window, which scaling does not stretch."""
    theta = fields.number("rope_local_base_freq", 10_000.0)
    if "sliding_attention" in fields.group("rope_parameters"):
        return fields.rope(fields.head_dim(), theta, "sliding_attention")
    return RopeSpec(theta=theta, dim=fields.head_dim())


def _attention(fields: Fields, rope: RopeSpec, window: int | None, qk_norm: str | None) -> AttentionSpec:
    bias = fields.flag("attention_bias", False)
    return attention(
        fields,
        rope,
        window,
        scale=fields.number("query_pre_attn_scalar", 256.0) ** -0.5,
        softcap=fields.optional_number("attn_logit_softcapping"),
        qk_norm=qk_norm,
        qkv_bias=bias,
        output_bias=bias,
    )


def _gemma(fields: Fields, attentions: list[AttentionSpec]) -> Arch:
    fields.skip("hidden_act")  # Older configs have it next to hidden_activation, which is the one that counts.
    mlp = gated_mlp(fields, activation_field="hidden_activation", default_activation="gelu_pytorch_tanh")
    return arch(
        fields,
        [LayerSpec(attention=spec, feed_forward=mlp, norm_outputs=True) for spec in attentions],
        norm=NormSpec(eps=fields.eps("rms_norm_eps", 1e-6), weight_offset=1.0),
        tie_embeddings=fields.flag("tie_word_embeddings", True),
        embedding_multiplier=fields.integer("hidden_size") ** 0.5,
        logit_softcap=fields.optional_number("final_logit_softcapping"),
    )


_NAMES = Names(mlp_norm="pre_feedforward_layernorm")
_NOT_TEXT = (re.escape("vision_tower.") + ".*", re.escape("multi_modal_projector.") + ".*")

FAMILIES = {
    "gemma2": Family(read=_read_gemma2, placements=_NAMES.placements),
    "gemma3_text": Family(read=_read_gemma3_text, placements=_NAMES.placements),
    "gemma3": Family(
        read=_read_gemma3,
        placements=_NAMES.placements,
        renames=(
            (r"^model\.language_model\.", "model."),
            (r"^language_model\.", ""),
            (r"^model\.(vision|multi)", r"\1"),
        ),
        ignored=_NOT_TEXT,
    ),
}
