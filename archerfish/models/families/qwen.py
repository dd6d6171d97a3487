"""Qwen2 and 2.5 (biased projections), Qwen3 (normalized queries and keys), Qwen3-MoE (experts on chosen layers)."""

from archerfish.arch.arch import Arch, ExpertsSpec, LayerSpec, MlpSpec
from archerfish.models.families.family import Family, Names
from archerfish.models.families.fields import Fields
from archerfish.models.families.llama import IGNORED, arch, attention, gated_mlp


def _read_qwen2(fields: Fields) -> Arch:
    _assume(fields)
    fields.only("use_mrope", False)
    rope = fields.rope(fields.head_dim())
    layers = [
        LayerSpec(attention=attention(fields, rope, window, qkv_bias=True), feed_forward=gated_mlp(fields))
        for window in _windows(fields)
    ]
    return arch(fields, layers)


def _read_qwen3(fields: Fields) -> Arch:
    _assume(fields, head_dim=128)
    mlp = gated_mlp(fields)
    return arch(fields, _qwen3_layers(fields, [mlp] * fields.num_layers(), _windows(fields)))


def _read_qwen3_moe(fields: Fields) -> Arch:
    _assume(fields)
    num_experts = fields.integer("num_experts", fields.integer("num_local_experts", 128))
    experts = ExpertsSpec(
        num_experts=num_experts,
        num_experts_per_token=fields.integer("num_experts_per_tok", 8, most=num_experts),
        size=fields.integer("moe_intermediate_size", 768),
        activation=fields.activation("hidden_act", "silu"),
        normalize_weights=fields.flag("norm_topk_prob", False),
    )
    step = fields.integer("decoder_sparse_step", 1)
    dense = set(fields.integers("mlp_only_layers", []))
    mlp = gated_mlp(fields)
    feed_forward: list[MlpSpec | ExpertsSpec] = [
        mlp if index in dense or (index + 1) % step else experts for index in range(fields.num_layers())
    ]
    windows = fields.windows(len(feed_forward), _window(fields))
    return arch(fields, _qwen3_layers(fields, feed_forward, windows))


def _qwen3_layers(
    fields: Fields, feed_forward: "list[MlpSpec] | list[MlpSpec | ExpertsSpec]", windows: list[int | None]
) -> list[LayerSpec]:
    bias = fields.flag("attention_bias", False)
    rope = fields.rope(fields.head_dim())
    return [
        LayerSpec(
            attention=attention(fields, rope, window, qkv_bias=bias, output_bias=bias, qk_norm="head"),
            feed_forward=part,
        )
        for window, part in zip(windows, feed_forward, strict=True)
    ]


def _assume(fields: Fields, **more: int) -> None:
    fields.assume(max_position_embeddings=32768, sliding_window=4096, **more)


def _window(fields: Fields) -> int | None:
    """Return the window, which Qwen configs turn off unless use_sliding_window is set."""
    fields.skip("sliding_window")
    return fields.window() if fields.flag("use_sliding_window", False) else None


def _windows(fields: Fields) -> list[int | None]:
    """Return each layer's window, which starts at a later layer, except where there are experts."""
    num_layers, window = fields.num_layers(), _window(fields)
    first = num_layers if window is None else fields.integer("max_window_layers", 28, least=0)
    default = ["full_attention" if index < first else "sliding_attention" for index in range(num_layers)]
    return fields.windows(num_layers, window, default)


FAMILIES = {
    "qwen2": Family(read=_read_qwen2, placements=Names().placements, ignored=IGNORED),
    "qwen3": Family(read=_read_qwen3, placements=Names().placements, ignored=IGNORED),
    "qwen3_moe": Family(read=_read_qwen3_moe, placements=Names().placements, ignored=IGNORED),
}
