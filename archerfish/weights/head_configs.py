"""config.json of draft heads, in the layouts that they are published in, to their specs and back.

EAGLE-3 as its authors publish it: the config of a Llama of one layer, with additional fields. As speculators publish
it: that config within another. Medusa: a few fields; those left out are the target's.
"""

from collections.abc import Mapping
from typing import Any

from archerfish.arch.arch import Activation, Arch, MlpSpec
from archerfish.arch.heads import EagleSpec, MedusaSpec
from archerfish.arch.rope import RopeKind, RopeSpec
from archerfish.errors import UnsupportedModel
from archerfish.models.families import Fields, find_family

_OURS = ("base_model_name_or_path", "about")
"""Fields in every config that we write, for people: where a head comes from."""

_OF_EAGLE = frozenset(
    "draft_vocab_size target_hidden_size norm_before_residual eagle_aux_hidden_state_layer_ids eagle_config "
    "norm_before_fc fc_norm norm_output use_sliding_window sliding_window target_model_type "
    "base_model_name_or_path about".split()
)
"""Fields next to those of the layer, where the layer's config is not separate."""

# Fields that transformers leaves out when it writes the config of a Llama, as it does for speculators' layers.
_LLAMA = {
    "model_type": "llama",
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_attention_heads": 32,
}
_ACTIVATIONS: dict[Activation, str] = {
    "silu": "silu",
    "gelu": "gelu",
    "gelu_tanh": "gelu_pytorch_tanh",
    "relu": "relu",
}
_ROPE_FIELDS: dict[RopeKind, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "dynamic": ("factor",),
    "llama3": ("factor", "original_max_positions", "low_freq_factor", "high_freq_factor"),
    "yarn": (
        *("factor", "original_max_positions", "attention_factor", "beta_fast", "beta_slow", "truncate"),
        *("mscale", "mscale_all_dim"),
    ),
    "longrope": ("factor", "original_max_positions", "attention_factor", "short_factor", "long_factor"),
}


# -- reading ----------------------------------------------------------------------------------------------------------


def read_eagle(config: Mapping[str, Any], num_target_layers: int, *, has_embedding: bool) -> EagleSpec:
    """Read an EAGLE-3 config. The tensors, not the config, decide whether the head has an embedding of its own."""
    if "speculators_model_type" in config:
        fields, layer = _split_speculators(config)
    else:
        fields = Fields({name: value for name, value in config.items() if name in _OF_EAGLE}, can_override=False)
        layer = {name: value for name, value in config.items() if name not in _OF_EAGLE}
    arch = _layer(layer)
    target_hidden_size = fields.integer("target_hidden_size", arch.hidden_size)
    if not has_embedding and target_hidden_size != arch.hidden_size:
        raise UnsupportedModel(
            f"it has no table of embeddings (embed_tokens.weight), and the target's cannot serve: it has "
            f"{target_hidden_size} numbers for a token, where the head takes {arch.hidden_size}"
        )
    spec = EagleSpec(
        hidden_size=arch.hidden_size,
        target_hidden_size=target_hidden_size,
        target_layers=_target_layers(fields, num_target_layers),
        layer=arch.layers[0],
        norm=arch.norm,
        vocab_size=_num_tokens(fields, "draft_vocab_size", arch.vocab_size),
        target_vocab_size=arch.vocab_size,
        has_embedding=has_embedding,
        norm_before_residual=fields.flag("norm_before_residual", False),
        max_positions=arch.max_positions,
    )
    for name in ("norm_before_fc", "fc_norm", "norm_output", "use_sliding_window"):
        fields.only(name, False)
    if fields.has("use_sliding_window"):
        fields.skip("sliding_window")
    fields.skip("target_model_type", *_OURS)
    fields.finish()
    return spec


def read_medusa(config: Mapping[str, Any], target: Arch) -> MedusaSpec:
    fields = Fields(config, can_override=False)
    fields.skip("version", *_OURS)
    vocab_size = fields.integer("vocab_size", target.vocab_size)
    spec = MedusaSpec(
        num_heads=fields.integer("medusa_num_heads"),
        num_layers=fields.integer("medusa_num_layers", 1),
        hidden_size=fields.integer("hidden_size", target.hidden_size),
        vocab_size=_num_tokens(fields, "truncated_vocab_size", vocab_size),
        target_vocab_size=vocab_size,
        has_own_head=not fields.flag("original_lm_head", False),
    )
    fields.finish()
    return spec


def _split_speculators(config: Mapping[str, Any]) -> tuple[Fields, dict[str, Any]]:
    """Return the head's fields, and those of its layer."""
    fields = Fields(config, can_override=False)
    kind = fields.get("speculators_model_type")
    if kind != "eagle3":
        raise UnsupportedModel(
            f"speculators_model_type is {kind!r}; of speculators' heads EAGLE-3 is supported, eagle3"
        )
    how = Fields(fields.group("speculators_config"), can_override=False)
    how.only("algorithm", "eagle3")
    # The number of draft tokens is decided step by step, from their cost and acceptance.
    how.skip("proposal_methods", "default_proposal_method", "verifier")
    how.finish()
    # Required: readers of this layout differ in its default.
    fields.get("norm_before_residual")
    # How it was trained, and what transformers writes with every model.
    fields.skip("speculators_version", "embed_requires_grad", "enable_sp_ulysses", "has_no_defaults_at_init")
    fields.skip("base_model_ep_plan", "base_model_tp_plan", "base_model_pp_plan")
    return fields, {**_LLAMA, **fields.group("transformer_layer_config", required=True)}


def _layer(config: Mapping[str, Any]) -> Arch:
    """Return the one layer, as a Llama."""
    if config.get("model_type") != "llama":
        raise UnsupportedModel(f"its layer is of type {config.get('model_type')!r}; EAGLE-3's is one of a llama")
    arch = find_family(config).read(Fields(config, can_override=False))
    if len(arch.layers) != 1:
        raise UnsupportedModel(f"config.json: num_hidden_layers = {len(arch.layers)} is not supported; it must be 1")
    if arch.tie_embeddings:
        raise UnsupportedModel("config.json: tie_word_embeddings = true is not supported; it must be false")
    return arch


def _target_layers(fields: Fields, num_target_layers: int) -> tuple[int, ...]:
    name = "eagle_aux_hidden_state_layer_ids"
    inner = Fields(fields.group("eagle_config"), can_override=False)
    inner.only("use_aux_hidden_state", True)
    layer_ids, counted_from = fields.get(name, None), 0
    if layer_ids is None:
        # In that field, ids are those of the layers that compute the states, not of those that read them.
        layer_ids, counted_from = inner.get(name, None), 1
    inner.skip(name)
    inner.finish()
    if layer_ids is None:
        layer_ids, counted_from = [2, num_target_layers // 2, num_target_layers - 3], 0
    if not isinstance(layer_ids, list) or not layer_ids or not all(type(layer) is int for layer in layer_ids):
        raise UnsupportedModel(f"config.json: {name} = {layer_ids!r} is not supported; it must be a list of layers")
    layers = tuple(layer + counted_from for layer in layer_ids)
    if not all(0 <= layer <= num_target_layers for layer in layers):
        raise UnsupportedModel(
            f"it reads the target's layers {', '.join(map(str, layers))}, but the target has {num_target_layers}; "
            f"is it a head for another model?"
        )
    return layers


def _num_tokens(fields: Fields, name: str, target_vocab_size: int) -> int:
    number = fields.integer(name, target_vocab_size)
    if number > target_vocab_size:
        raise UnsupportedModel(f"config.json: {name} = {number} is more than the target's {target_vocab_size} tokens")
    return number


# -- writing ----------------------------------------------------------------------------------------------------------


def eagle_config(spec: EagleSpec) -> dict[str, Any]:
    """Write the layout of EAGLE-3's authors, with the target's layers where vLLM reads them."""
    attention, mlp = spec.layer.attention, spec.layer.feed_forward
    assert isinstance(mlp, MlpSpec) and attention.rope is not None
    config = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_size": spec.hidden_size,
        "target_hidden_size": spec.target_hidden_size,
        "eagle_aux_hidden_state_layer_ids": list(spec.target_layers),
        "norm_before_residual": spec.norm_before_residual,
        "vocab_size": spec.target_vocab_size,
        "draft_vocab_size": spec.vocab_size,
        "num_hidden_layers": 1,
        "num_attention_heads": attention.num_heads,
        "num_key_value_heads": attention.num_kv_heads,
        "head_dim": attention.head_dim,
        "attention_bias": attention.qkv_bias,
        "intermediate_size": mlp.size,
        "hidden_act": _ACTIVATIONS[mlp.activation],
        "mlp_bias": mlp.bias,
        "rms_norm_eps": spec.norm.eps,
        "max_position_embeddings": spec.max_positions,
        "rope_theta": attention.rope.theta,
        "rope_scaling": _rope_scaling(attention.rope, attention.head_dim),
        "tie_word_embeddings": False,
    }
    again = read_eagle(config, max(spec.target_layers), has_embedding=spec.has_embedding)
    assert again == spec, "the published layout cannot say what this head is"
    return config


def medusa_config(spec: MedusaSpec) -> dict[str, Any]:
    """Write the authors' layout, with vLLM's fields for a smaller vocabulary and a shared output head."""
    return {
        "architectures": ["MedusaModel"],
        "model_type": "medusa",
        "medusa_num_heads": spec.num_heads,
        "medusa_num_layers": spec.num_layers,
        "hidden_size": spec.hidden_size,
        "vocab_size": spec.target_vocab_size,
        "truncated_vocab_size": spec.vocab_size,
        "original_lm_head": not spec.has_own_head,
    }


def _rope_scaling(rope: RopeSpec, head_dim: int) -> dict[str, Any] | None:
    said: dict[str, Any] = {"rope_type": rope.kind}
    if rope.dim != head_dim:
        said["partial_rotary_factor"] = rope.dim / head_dim
    for name in _ROPE_FIELDS[rope.kind]:
        value = getattr(rope, name)
        if value is not None:
            published = "original_max_position_embeddings" if name == "original_max_positions" else name
            said[published] = list(value) if isinstance(value, tuple) else value
    return None if said == {"rope_type": "default"} else said
