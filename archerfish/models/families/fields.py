"""Reads config.json field by field and records which fields were read: unknown fields are refused by name."""

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, get_args

from archerfish.arch.arch import Activation
from archerfish.arch.rope import RopeKind, RopeSpec
from archerfish.errors import UnsupportedModel, shown_value

# Training, bookkeeping and generation defaults: none of them changes what a forward pass computes.
_WITHOUT_EFFECT = frozenset(
    "architectures model_type transformers_version torch_dtype dtype _name_or_path name_or_path auto_map use_cache "
    "initializer_range initializer_factor pretraining_tp attention_dropout attn_pdrop embd_pdrop resid_pdrop "
    "hidden_dropout residual_dropout embedding_dropout resid_dropout dropout output_attentions output_hidden_states "
    "output_router_logits router_aux_loss_coef router_jitter_noise bos_token_id eos_token_id pad_token_id "
    "unk_token_id sep_token_id decoder_start_token_id is_decoder is_encoder_decoder add_cross_attention "
    "cross_attention_hidden_size tie_encoder_decoder gradient_checkpointing use_return_dict return_dict torchscript "
    "chunk_size_feed_forward id2label label2id num_labels problem_type finetuning_task task_specific_params "
    "pruned_heads prefix prune_heads keys_to_ignore_at_inference _attn_implementation attn_implementation "
    "_attn_implementation_autoset _flash_attn_2_enabled use_flash_attn cache_implementation max_length min_length "
    "temperature top_k top_p do_sample num_beams repetition_penalty unsloth_version unsloth_fixed "
    "max_window_layers summary_type summary_use_proj summary_activation summary_proj_to_labels "
    "summary_first_dropout reorder_and_upcast_attn n_ctx n_special predict_special_tokens output_past _num_labels "
    "max_sequence_length is_llama_config transformers.js_config is_matryoshka matryoshka_dimensions".split()
)

# Each means that the weights are packed, whatever else the config contains. The last is what MLX writes.
_PACKED = ("quantization_config", "compression_config", "quantization")

_MOST_LAYERS = 10_000
"""Far more than any model has: a larger number is a mistake, and describing so many layers would take all memory."""

_LARGEST_INTEGER = 2**31 - 1
"""Kernels count in 32 bits."""
_SMALLEST_NUMBER, _LARGEST_NUMBER = 1e-15, 1e15
"""Fields beyond these are meaningless; within, float32 can square and divide by them."""

_ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "relu": "relu",
}

_missing: Any = object()


class Fields:
    """The fields of a config.json."""

    def __init__(self, values: Mapping[str, Any], *, can_override: bool = True) -> None:
        """`can_override` selects the advice of error messages: whether --hf-overrides applies to this config."""
        self._can_override = can_override
        # A null reads like a field that is left out; only `assume` distinguishes them.
        self._values = {name: value for name, value in values.items() if value is not None}
        self._nulls = set(values) - set(self._values)
        self._read: set[str] = set()

    def assume(self, **defaults: Any) -> None:
        """Set the family's defaults of fields that are left out. A null stays: it means that there is none of it."""
        self._values = {**{n: v for n, v in defaults.items() if n not in self._nulls}, **self._values}

    def get(self, name: str, default: Any = _missing) -> Any:
        """Return a value of any type. Without a default the field is required."""
        self._read.add(name)
        if name in self._values:
            return self._values[name]
        if default is _missing:
            raise UnsupportedModel(f"config.json lacks the field {name!r}")
        return default

    def has(self, name: str) -> bool:
        return name in self._values

    def integer(self, name: str, default: int | None = None, least: int = 1, most: int = _LARGEST_INTEGER) -> int:
        value = self.get(name, _missing if default is None else default)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise self._bad(name, value, f"a whole number from {least} to {most}")
        return value

    def group(self, name: str, *, required: bool = False) -> Mapping[str, Any]:
        """Return the fields within a field; none where it is left out."""
        value = self.get(name, _missing if required else {})
        if not isinstance(value, Mapping):
            raise self._bad(name, value, "an object with fields of its own")
        return value

    def number(
        self, name: str, default: float | None = None, *, most: float = _LARGEST_NUMBER, may_be_zero: bool = False
    ) -> float:
        """Return a positive number. JSON parsers accept infinity and NaN, too: these are refused."""
        value = self.get(name, _missing if default is None else default)
        least = 0.0 if may_be_zero else _SMALLEST_NUMBER
        if not _is_number(value, least, most):
            raise self._bad(name, value, f"a number from {least:g} to {most:g}")
        return float(value)

    def optional_number(self, name: str, *, may_be_zero: bool = False) -> float | None:
        return self.number(name, may_be_zero=may_be_zero) if self.has(name) else None

    def eps(self, name: str, default: float) -> float:
        """Return what a norm adds to the mean of squares."""
        return self.number(name, default, most=1.0, may_be_zero=True)

    def flag(self, name: str, default: bool) -> bool:
        value = self.get(name, default)
        if not isinstance(value, bool):
            raise self._bad(name, value, "true or false")
        return value

    def integers(self, name: str, default: list[int]) -> list[int]:
        value = self.get(name, default)
        if not isinstance(value, list) or not all(type(item) is int for item in value):
            raise self._bad(name, value, "a list of whole numbers")
        return value

    def activation(self, name: str, default: str) -> Activation:
        value = self.get(name, default)
        if not isinstance(value, str) or value not in _ACTIVATIONS:
            raise self._bad(name, value, f"one of {', '.join(_ACTIVATIONS)}")
        return _ACTIVATIONS[value]

    def only(self, name: str, value: Any) -> None:
        """Accept the field only with this value: another would mean arithmetic that is not implemented."""
        actual = self.get(name, value)
        if actual != value:
            raise self._bad(name, actual, json.dumps(value))

    def skip(self, *names: str) -> None:
        """Accept fields that this family may have and that have no effect on it."""
        self._read.update(names)

    def finish(self) -> None:
        """Refuse fields that were not read."""
        for name in _PACKED:
            if self.has(name):
                raise UnsupportedModel(
                    f"config.json says {name}: quantized checkpoints are not supported yet; use the original model"
                )
        unknown = sorted(set(self._values) - self._read - _WITHOUT_EFFECT)
        if unknown:
            override = json.dumps(dict.fromkeys(unknown))
            fix = f"pass --hf-overrides '{override}'" if self._can_override else "take them out of the file"
            raise UnsupportedModel(
                f"config.json has fields that are not understood for this model type: {', '.join(unknown)}; "
                f"if they do not change the model's arithmetic, {fix}"
            )

    def _bad(self, name: str, value: object, wanted: str) -> UnsupportedModel:
        return UnsupportedModel(f"config.json: {name} = {shown_value(value)} is not supported; it must be {wanted}")

    # -- parts that many families share ---------------------------------------------------------------------------

    def head_dim(self) -> int:
        hidden, heads = self.integer("hidden_size"), self.integer("num_attention_heads")
        if not self.has("head_dim") and hidden % heads:
            raise self._bad("num_attention_heads", heads, f"a divisor of hidden_size = {hidden}")
        return self.integer("head_dim", hidden // heads)

    def num_kv_heads(self, name: str = "num_key_value_heads") -> int:
        heads = self.integer("num_attention_heads")
        kv_heads = self.integer(name, heads)
        if heads % kv_heads:
            raise self._bad(name, kv_heads, f"a divisor of num_attention_heads = {heads}")
        return kv_heads

    def num_layers(self, name: str = "num_hidden_layers", default: int | None = None) -> int:
        return self.integer(name, default, most=_MOST_LAYERS)

    def max_positions(self) -> int:
        return self.integer("max_position_embeddings")

    def window(self) -> int | None:
        self.skip("sliding_window")
        return self.integer("sliding_window") if self.has("sliding_window") else None

    def windows(self, num_layers: int, window: int | None, default_types: list[str] | None = None) -> list[int | None]:
        """Return each layer's window: on the layers that layer_types or else the default names; without either, on
        all."""
        types = self.get("layer_types", default_types)
        if types is None:
            return [window] * num_layers
        if (
            not isinstance(types, list)
            or len(types) != num_layers
            or not all(kind in ("full_attention", "sliding_attention") for kind in types)
        ):
            raise self._bad("layer_types", types, f"{num_layers} times full_attention or sliding_attention")
        if window is None and "sliding_attention" in types:
            raise UnsupportedModel(
                "config.json: there are layers of type sliding_attention but no sliding_window in use; "
                "set sliding_window, or make all layer_types full_attention"
            )
        return [window if kind == "sliding_attention" else None for kind in types]

    def rope(self, dim: int, default_theta: float = 10000.0, layer_type: str | None = None) -> RopeSpec:
        """Return the rotation, in today's layout (rope_parameters) or the older one (rope_theta, rope_scaling)."""
        values = self.group("rope_parameters") or self.group("rope_scaling")
        inner = Fields(values if layer_type is None or layer_type not in values else Fields(values).group(layer_type))
        theta = inner.number("rope_theta", self.number("rope_theta", default_theta))
        partial = inner.number("partial_rotary_factor", self.number("partial_rotary_factor", 1.0, most=1.0), most=1.0)
        kind = inner.get("rope_type", inner.get("type", "default"))
        if kind not in get_args(RopeKind):
            raise UnsupportedModel(
                f"rope type {kind!r} is not supported; supported are {', '.join(get_args(RopeKind))}"
            )
        rotated_dims = int(dim * partial)
        if rotated_dims < 2 or rotated_dims % 2:
            raise self._bad("partial_rotary_factor", partial, f"such that an even number of the {dim} dimensions turns")
        spec = self._scaled_rope(inner, kind, theta, rotated_dims)
        inner.finish()
        self._check_rotation(spec)
        return spec

    def _check_rotation(self, spec: RopeSpec) -> None:
        """Refuse fields that are valid alone but not together."""
        try:
            rotation = spec.rotation(self.max_positions())
            is_sound = all(map(math.isfinite, (*rotation.frequencies, rotation.magnitude)))
        except (ArithmeticError, ValueError):
            is_sound = False
        if not is_sound:
            raise UnsupportedModel(
                f"config.json: the fields of rope type {spec.kind} give angles that are no finite numbers together; "
                "rope_theta, rope_scaling or rope_parameters, or max_position_embeddings is wrong"
            )

    def _scaled_rope(self, inner: "Fields", kind: RopeKind, theta: float, dim: int) -> RopeSpec:
        spec = RopeSpec(theta=theta, dim=dim, kind=kind)
        trained = self.max_positions()
        original = inner.integer("original_max_position_embeddings", trained)
        original = self.integer("original_max_position_embeddings", original)
        if kind == "default":
            inner.skip("factor")
            return spec
        if kind == "linear":
            return replace(spec, factor=inner.number("factor"))
        if kind == "dynamic":
            return replace(spec, factor=inner.number("factor"), original_max_positions=trained)
        if kind == "llama3":
            return replace(
                spec,
                factor=inner.number("factor"),
                original_max_positions=original,
                low_freq_factor=inner.number("low_freq_factor"),
                high_freq_factor=inner.number("high_freq_factor"),
            )
        spec = replace(
            spec,
            factor=inner.number("factor", trained / original),
            original_max_positions=original,
            attention_factor=inner.optional_number("attention_factor"),
        )
        if kind == "yarn":
            return replace(
                spec,
                beta_fast=inner.number("beta_fast", 32.0),
                beta_slow=inner.number("beta_slow", 1.0),
                truncate=inner.flag("truncate", True),
                mscale=inner.optional_number("mscale", may_be_zero=True),
                mscale_all_dim=inner.optional_number("mscale_all_dim", may_be_zero=True),
            )
        short, long = (self._factors(inner, name, dim) for name in ("short_factor", "long_factor"))
        return replace(spec, short_factor=short, long_factor=long)

    def _factors(self, inner: "Fields", name: str, dim: int) -> tuple[float, ...]:
        factors = inner.get(name)
        if not isinstance(factors, list) or len(factors) != dim // 2:
            raise self._bad(name, factors, f"a list of {dim // 2} numbers")
        bounds = (_SMALLEST_NUMBER, _LARGEST_NUMBER)
        if not all(_is_number(factor, *bounds) for factor in factors):
            raise self._bad(name, factors, "a list of numbers from {:g} to {:g}".format(*bounds))
        return tuple(float(f) for f in factors)


def _is_number(value: object, least: float, most: float) -> bool:
    """Check the range before conversion: integers may have any number of digits."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and least <= value <= most
