"""OLMo 2: norms after attention and feed-forward instead of before, queries and keys normalized over all heads."""

from archerfish.arch.arch import Arch, LayerSpec, NormSpec
from archerfish.models.families.family import Family, Names
from archerfish.models.families.fields import Fields
from archerfish.models.families.llama import IGNORED, arch, attention, gated_mlp


def _read_olmo2(fields: Fields) -> Arch:
    fields.assume(max_position_embeddings=2048)
    bias = fields.flag("attention_bias", False)
    rope = fields.rope(fields.head_dim())
    layer = LayerSpec(
        attention=attention(fields, rope, None, qkv_bias=bias, output_bias=bias, qk_norm="width"),
        feed_forward=gated_mlp(fields),
        norm_inputs=False,
        norm_outputs=True,
    )
    norm = NormSpec(eps=fields.eps("rms_norm_eps", 1e-5))
    return arch(fields, [layer] * fields.num_layers(), norm=norm)


FAMILIES = {"olmo2": Family(read=_read_olmo2, placements=Names().placements, ignored=IGNORED)}
