"""GPT-2: learned positions, layer norms, biases everywhere, matrices stored transposed."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from archerfish.arch.arch import Arch, AttentionSpec, LayerSpec, MlpSpec, NormSpec
from archerfish.models.families.family import Family, Names, Placement
from archerfish.models.families.fields import Fields

if TYPE_CHECKING:
    from torch import Tensor


def _read_gpt2(fields: Fields) -> Arch:
    fields.only("scale_attn_weights", True)
    fields.only("scale_attn_by_inverse_layer_idx", False)
    fields.only("add_cross_attention", False)
    hidden, heads = fields.integer("n_embd", 768), fields.integer("n_head", 12)
    layer = LayerSpec(
        attention=AttentionSpec(
            num_heads=heads,
            num_kv_heads=heads,
            head_dim=hidden // heads,
            scale=(hidden // heads) ** -0.5,
            qkv_bias=True,
            output_bias=True,
        ),
        feed_forward=MlpSpec(
            size=fields.integer("n_inner", 4 * hidden),
            activation=fields.activation("activation_function", "gelu_new"),
            gated=False,
            bias=True,
        ),
    )
    arch = Arch(
        family="gpt2",
        vocab_size=fields.integer("vocab_size", 50257),
        hidden_size=hidden,
        layers=(layer,) * fields.num_layers("n_layer", 12),
        norm=NormSpec(kind="layer", eps=fields.eps("layer_norm_epsilon", 1e-5)),
        max_positions=fields.integer("n_positions", 1024),
        learned_positions=True,
        tie_embeddings=fields.flag("tie_word_embeddings", True),
    )
    fields.finish()
    return arch


def _transposed(weight: "Tensor") -> "Tensor":
    return weight.t()


_NAMES = Names(
    embedding="wte",
    norm="ln_f",
    layer="h.{i}.",
    attention_norm="ln_1",
    mlp_norm="ln_2",
    qkv="attn.c_attn",
    output="attn.c_proj",
    up="mlp.c_fc",
    down="mlp.c_proj",
    linear_transform=_transposed,
)


def _placements(arch: Arch) -> Iterator[Placement]:
    yield Placement("wpe.weight", "positions.weight")
    yield from _NAMES.placements(arch)


FAMILIES = {
    "gpt2": Family(
        read=_read_gpt2,
        placements=_placements,
        renames=((r"^transformer\.", ""),),
        ignored=(r"h\.\d+\.attn\.(masked_)?bias",),
    )
}
