"""SmolLM3: Llama with no position at all on every few layers."""

from archerfish.arch.arch import Arch, LayerSpec
from archerfish.errors import UnsupportedModel
from archerfish.models.families.family import Family, Names
from archerfish.models.families.fields import Fields
from archerfish.models.families.llama import IGNORED, arch, attention, gated_mlp


def _read_smollm3(fields: Fields) -> Arch:
    fields.assume(max_position_embeddings=32768)
    num_layers = fields.num_layers()
    interval = fields.integer("no_rope_layer_interval", 4)
    turns = fields.integers("no_rope_layers", [int((index + 1) % interval != 0) for index in range(num_layers)])
    if len(turns) < num_layers:
        raise UnsupportedModel(f"config.json: no_rope_layers has {len(turns)} entries for {num_layers} layers")
    window = fields.window()
    windowed = fields.flag("use_sliding_window", False) and window is not None
    default = ["full_attention" if turning or not windowed else "sliding_attention" for turning in turns[:num_layers]]
    bias = fields.flag("attention_bias", False)
    mlp = gated_mlp(fields, bias=fields.flag("mlp_bias", False))
    rope = fields.rope(fields.head_dim(), 2_000_000.0)
    layers = [
        LayerSpec(
            attention=attention(fields, rope if turning else None, layer_window, qkv_bias=bias, output_bias=bias),
            feed_forward=mlp,
        )
        for turning, layer_window in zip(turns, fields.windows(num_layers, window, default), strict=False)
    ]
    return arch(fields, layers, tie_embeddings=fields.flag("tie_word_embeddings", True))


FAMILIES = {"smollm3": Family(read=_read_smollm3, placements=Names().placements, ignored=IGNORED)}
