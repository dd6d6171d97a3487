"""The shape of a decoder-only transformer: enough to build it, to load it and to count its cost.

Multi-head, multi-query and grouped-query attention, local windows, keys and values shared between layers, experts and
dense layers in one model are all values of these fields; none of them is a kind of model.
"""

from dataclasses import dataclass
from typing import Literal

from archerfish.arch.rope import RopeSpec

Activation = Literal["silu", "gelu", "gelu_tanh", "relu"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NormSpec:
    """Root-mean-square norm, or layer norm (which also subtracts the mean and adds a bias)."""

    kind: Literal["rms", "layer"] = "rms"
    eps: float = 1e-6
    weight_offset: float = 0.0
    """Added to the stored weight: Gemma stores it less 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionSpec:
    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    """Factor of query-key dot products."""
    qkv_bias: bool = False
    output_bias: bool = False
    rope: RopeSpec | None = None
    """None where the layer does not rotate: learned positions, or no position at all."""
    window: int | None = None
    """Keys that a query attends to, itself included; None for all."""
    softcap: float | None = None
    """Scores are squashed to +-softcap by tanh."""
    qk_norm: Literal["head", "width"] | None = None
    """Queries and keys are normalized, per head or over all heads at once."""
    kv_source: int | None = None
    """Layer whose keys and values this one reads instead of computing its own."""

    @property
    def q_width(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def kv_width(self) -> int:
        return self.num_kv_heads * self.head_dim

    @property
    def qkv_width(self) -> int:
        """Outputs of the projection: queries, and keys and values unless another layer computes them."""
        return self.q_width + (2 * self.kv_width if self.kv_source is None else 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class MlpSpec:
    size: int
    activation: Activation = "silu"
    gated: bool = True
    """activation(gate(x)) * up(x), instead of activation(up(x))."""
    bias: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertsSpec:
    """Gated feed-forward experts, of which a router chooses a few for each token."""

    num_experts: int
    num_experts_per_token: int
    size: int
    activation: Activation = "silu"
    normalize_weights: bool = True
    """The chosen experts' weights are scaled to sum to 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSpec:
    attention: AttentionSpec
    feed_forward: MlpSpec | ExpertsSpec
    norm_inputs: bool = True
    """Norm before attention and before the feed-forward part."""
    norm_outputs: bool = False
    """Norm after each of them, before the residual is added."""
    parallel: bool = False
    """Attention and feed-forward read the same input and are added together."""
    shared_input_norm: bool = False
    """With parallel: one input norm serves both."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arch:
    """A whole model."""

    family: str
    vocab_size: int
    hidden_size: int
    layers: tuple[LayerSpec, ...]
    norm: NormSpec
    max_positions: int
    """Context the model was trained for."""
    learned_positions: bool = False
    """A table of max_positions position vectors is added to the embeddings."""
    tie_embeddings: bool = False
    """The output head is the embedding table."""
    head_bias: bool = False
    embedding_multiplier: float = 1.0
    residual_multiplier: float = 1.0
    """Attention and feed-forward outputs are scaled by it before they are added."""
    logit_multiplier: float = 1.0
    logit_softcap: float | None = None

    def __post_init__(self) -> None:
        for index, layer in enumerate(self.layers):
            source = layer.attention.kv_source
            assert layer.attention.num_heads % layer.attention.num_kv_heads == 0, "heads share kv heads evenly"
            assert source is None or (source < index and self.layers[source].attention.kv_source is None), (
                "kv_source must be an earlier layer that makes its own keys and values"
            )

    @property
    def can_extend_positions(self) -> bool:
        """Positions past max_positions have a meaning: the rotation is defined for them."""
        ropes = [layer.attention.rope for layer in self.layers if layer.attention.rope is not None]
        return not self.learned_positions and all(rope.kind in ("dynamic", "linear", "yarn") for rope in ropes)
