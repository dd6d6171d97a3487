"""Falcon: attention and feed-forward in parallel, one key-value head (7B) or few (40B), projections fused by group."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from archerfish.arch.arch import Arch, AttentionSpec, LayerSpec, MlpSpec, NormSpec
from archerfish.models.families.family import Family, Names, Placement
from archerfish.models.families.fields import Fields

if TYPE_CHECKING:
    from torch import Tensor


def _read_falcon(fields: Fields) -> Arch:
    fields.assume(max_position_embeddings=2048)
    fields.only("alibi", False)
    hidden, heads = fields.integer("hidden_size"), fields.integer("num_attention_heads")
    grouped = fields.flag("new_decoder_architecture", False)
    parallel = fields.flag("parallel_attn", True) or grouped
    num_norms = fields.integer("num_ln_in_parallel_attn", 2 if grouped else 1)
    bias = fields.flag("bias", False)
    head_dim = hidden // heads
    layer = LayerSpec(
        attention=AttentionSpec(
            num_heads=heads,
            num_kv_heads=_num_kv_heads(fields, grouped=grouped),
            head_dim=head_dim,
            scale=head_dim**-0.5,
            qkv_bias=bias,
            output_bias=bias,
            rope=fields.rope(head_dim),
        ),
        feed_forward=MlpSpec(
            size=fields.integer("ffn_hidden_size", 4 * hidden),
            activation=fields.activation("activation", "gelu"),
            gated=False,
            bias=bias,
        ),
        parallel=parallel,
        shared_input_norm=parallel and num_norms == 1,
    )
    arch = Arch(
        family="falcon",
        vocab_size=fields.integer("vocab_size"),
        hidden_size=hidden,
        layers=(layer,) * fields.num_layers(),
        norm=NormSpec(kind="layer", eps=fields.eps("layer_norm_epsilon", 1e-5)),
        max_positions=fields.max_positions(),
        tie_embeddings=fields.flag("tie_word_embeddings", True),
    )
    fields.skip("apply_residual_connection_post_layernorm")
    fields.finish()
    return arch


def _num_kv_heads(fields: Fields, *, grouped: bool) -> int:
    multi_query = fields.flag("multi_query", True)
    stored = fields.num_kv_heads("num_kv_heads")  # Set to all heads in multi-query checkpoints, which ignore it.
    return stored if grouped or not multi_query else 1


def _ungroup(weight: "Tensor", spec: AttentionSpec) -> "Tensor":
    """Reorder each key-value head's queries, key, value in turn into all queries, all keys, all values."""
    import torch  # Imported here, because reading a config does not need it.

    repeat = spec.num_heads // spec.num_kv_heads
    groups = weight.reshape(spec.num_kv_heads, repeat + 2, spec.head_dim, *weight.shape[1:])
    return torch.cat([part.flatten(0, 2) for part in (groups[:, :repeat], groups[:, -2:-1], groups[:, -1:])])


_NAMES = Names(
    embedding="transformer.word_embeddings",
    norm="transformer.ln_f",
    layer="transformer.h.{i}.",
    qkv="self_attention.query_key_value",
    output="self_attention.dense",
    up="mlp.dense_h_to_4h",
    down="mlp.dense_4h_to_h",
)
_TWO_NORM_NAMES = replace(_NAMES, attention_norm="ln_attn", mlp_norm="ln_mlp")


def _placements(arch: Arch) -> Iterator[Placement]:
    layer = arch.layers[0]
    names = _TWO_NORM_NAMES if layer.parallel and not layer.shared_input_norm else _NAMES
    for placement in names.placements(arch):
        fused = ".attention.qkv." in placement.target
        yield replace(placement, transform=partial(_ungroup, spec=layer.attention)) if fused else placement


FAMILIES = {"falcon": Family(read=_read_falcon, placements=_placements)}
