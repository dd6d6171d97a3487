"""Phi-3 and Phi-4: Llama with fused projections, partial rotation of heads, and long contexts by longrope."""

from archerfish.arch.arch import Arch, LayerSpec
from archerfish.models.families.family import Family, Names
from archerfish.models.families.fields import Fields
from archerfish.models.families.llama import IGNORED, arch, attention, gated_mlp


def _read_phi3(fields: Fields) -> Arch:
    fields.assume(max_position_embeddings=4096, rms_norm_eps=1e-5)
    for bias in ("attention_bias", "mlp_bias", "lm_head_bias"):
        fields.only(bias, False)
    for factor in ("full_attn_mod", "interpolate_factor"):
        fields.only(factor, 1)
    rope = fields.rope(fields.head_dim())
    windows = fields.windows(fields.num_layers(), fields.window())
    mlp = gated_mlp(fields)
    return arch(fields, [LayerSpec(attention=attention(fields, rope, w), feed_forward=mlp) for w in windows])


_NAMES = Names(qkv="self_attn.qkv_proj", up="mlp.gate_up_proj")

FAMILIES = {"phi3": Family(read=_read_phi3, placements=_NAMES.placements, ignored=IGNORED)}
