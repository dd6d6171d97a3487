"""StarCoder2: layer norms and biases around grouped-query attention with a window and a plain feed-forward part."""

from archerfish.arch.arch import Arch, LayerSpec, MlpSpec, NormSpec
from archerfish.models.families.family import Family, Names
from archerfish.models.families.fields import Fields
from archerfish.models.families.llama import IGNORED, arch, attention


def _read_starcoder2(fields: Fields) -> Arch:
    fields.assume(max_position_embeddings=4096)
    bias = fields.flag("use_bias", True)
    fields.only("norm_type", "layer_norm")
    fields.only("mlp_type", "default")
    rope = fields.rope(fields.head_dim())
    mlp = MlpSpec(
        size=fields.integer("intermediate_size"),
        activation=fields.activation("hidden_act", "gelu_pytorch_tanh"),
        gated=False,
        bias=bias,
    )
    layers = [
        LayerSpec(attention=attention(fields, rope, window, qkv_bias=bias, output_bias=bias), feed_forward=mlp)
        for window in fields.windows(fields.num_layers(), fields.window())
    ]
    return arch(
        fields,
        layers,
        norm=NormSpec(kind="layer", eps=fields.eps("norm_epsilon", 1e-5)),
        tie_embeddings=fields.flag("tie_word_embeddings", True),
    )


_NAMES = Names(up="mlp.c_fc", down="mlp.c_proj")

FAMILIES = {"starcoder2": Family(read=_read_starcoder2, placements=_NAMES.placements, ignored=IGNORED)}
