"""Granite: Llama with multipliers on embeddings, attention scores, residuals and logits."""

from archerfish.arch.arch import Arch, LayerSpec
from archerfish.models.families.family import Family, Names
from archerfish.models.families.fields import Fields
from archerfish.models.families.llama import IGNORED, arch, attention, gated_mlp


def _read_granite(fields: Fields) -> Arch:
    fields.assume(max_position_embeddings=2048)
    bias = fields.flag("attention_bias", False)
    scale = fields.number("attention_multiplier", 1.0)
    rope = fields.rope(fields.head_dim())
    layer = LayerSpec(
        attention=attention(fields, rope, None, qkv_bias=bias, output_bias=bias, scale=scale),
        feed_forward=gated_mlp(fields, bias=fields.flag("mlp_bias", False)),
    )
    return arch(
        fields,
        [layer] * fields.num_layers(),
        embedding_multiplier=fields.number("embedding_multiplier", 1.0),
        residual_multiplier=fields.number("residual_multiplier", 1.0),
        logit_multiplier=1.0 / fields.number("logits_scaling", 1.0),
    )


FAMILIES = {"granite": Family(read=_read_granite, placements=Names().placements, ignored=IGNORED)}
