"""Llama 2 and 3, Mistral, Mixtral: the plain pre-norm decoder with rotary positions and a gated feed-forward part."""

from collections.abc import Callable
from typing import Any

from archerfish.arch.arch import Arch, AttentionSpec, ExpertsSpec, LayerSpec, MlpSpec, NormSpec
from archerfish.arch.rope import RopeSpec
from archerfish.models.families.family import Family, Names
from archerfish.models.families.fields import Fields


def attention(fields: Fields, rope: RopeSpec | None, window: int | None, **more: Any) -> AttentionSpec:
    """Return the attention that most families start from; `more` are the fields in which one differs."""
    head_dim = fields.head_dim()
    usual: dict[str, Any] = {
        "num_heads": fields.integer("num_attention_heads"),
        "num_kv_heads": fields.num_kv_heads(),
        "head_dim": head_dim,
        "scale": head_dim**-0.5,
        "rope": rope,
        "window": window,
    }
    return AttentionSpec(**{**usual, **more})


def gated_mlp(
    fields: Fields, *, bias: bool = False, activation_field: str = "hidden_act", default_activation: str = "silu"
) -> MlpSpec:
    activation = fields.activation(activation_field, default_activation)
    return MlpSpec(size=fields.integer("intermediate_size"), activation=activation, bias=bias)


def arch(fields: Fields, layers: list[LayerSpec], **more: Any) -> Arch:
    """Return the Arch that most families end in. Refuses fields that were not read."""
    usual: dict[str, Any] = {
        "family": fields.get("model_type"),
        "vocab_size": fields.integer("vocab_size"),
        "hidden_size": fields.integer("hidden_size"),
        "layers": tuple(layers),
        "norm": NormSpec(eps=fields.eps("rms_norm_eps", 1e-6)),
        "max_positions": fields.max_positions(),
        "tie_embeddings": fields.flag("tie_word_embeddings", False),
    }
    fields.finish()
    return Arch(**{**usual, **more})


def _read_llama(fields: Fields) -> Arch:
    fields.assume(max_position_embeddings=2048)
    fields.only("rope_interleaved", False)
    bias = fields.flag("attention_bias", False)
    rope = fields.rope(fields.head_dim())
    layer = LayerSpec(
        attention=attention(fields, rope, None, qkv_bias=bias, output_bias=bias),
        feed_forward=gated_mlp(fields, bias=fields.flag("mlp_bias", False)),
    )
    return arch(fields, [layer] * fields.num_layers())


def _read_mistral(fields: Fields) -> Arch:
    fields.assume(max_position_embeddings=131072, sliding_window=4096)
    return arch(fields, _windowed_layers(fields, gated_mlp))


def _read_mixtral(fields: Fields) -> Arch:
    fields.assume(max_position_embeddings=131072, rms_norm_eps=1e-5, rope_theta=1_000_000.0)

    def experts(fields: Fields) -> ExpertsSpec:
        num_experts = fields.integer("num_local_experts", 8)
        return ExpertsSpec(
            num_experts=num_experts,
            num_experts_per_token=fields.integer("num_experts_per_tok", 2, most=num_experts),
            size=fields.integer("intermediate_size"),
            activation=fields.activation("hidden_act", "silu"),
        )

    return arch(fields, _windowed_layers(fields, experts))


def _windowed_layers(fields: Fields, feed_forward: Callable[[Fields], MlpSpec | ExpertsSpec]) -> list[LayerSpec]:
    rope = fields.rope(fields.head_dim())
    windows = fields.windows(fields.num_layers(), fields.window())
    return [LayerSpec(attention=attention(fields, rope, w), feed_forward=feed_forward(fields)) for w in windows]


_MIXTRAL_NAMES = Names(
    router="block_sparse_moe.gate",
    expert_up=("block_sparse_moe.experts.{e}.w1", "block_sparse_moe.experts.{e}.w3"),
    expert_down="block_sparse_moe.experts.{e}.w2",
)
IGNORED = (r".*rotary_emb\.inv_freq",)

FAMILIES = {
    "llama": Family(read=_read_llama, placements=Names().placements, ignored=IGNORED),
    "mistral": Family(read=_read_mistral, placements=Names().placements, ignored=IGNORED),
    "mixtral": Family(read=_read_mixtral, placements=_MIXTRAL_NAMES.placements, ignored=IGNORED),
}
