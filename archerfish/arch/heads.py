"""The shape of draft heads, which propose a model's next tokens from its hidden states. No torch, no files."""

from dataclasses import dataclass

from archerfish.arch.arch import Arch, LayerSpec, MlpSpec, NormSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class EagleSpec:
    """EAGLE-3: one layer that reads the target's hidden states of several layers, and then its own output."""

    hidden_size: int
    target_hidden_size: int
    target_layers: tuple[int, ...]
    """Layers of the target whose input is read; the number of layers stands for the last one's output."""
    layer: LayerSpec
    norm: NormSpec
    vocab_size: int
    """Size of the draft vocabulary."""
    target_vocab_size: int
    has_embedding: bool
    """Whether the head has a table of its own; else it uses the target's, as it is stored."""
    norm_before_residual: bool
    """The layer's sum begins with the normalized state, not with the state."""
    max_positions: int

    def __post_init__(self) -> None:
        layer = self.layer
        assert self.target_layers, "it reads at least one depth of the target"
        assert self.vocab_size <= self.target_vocab_size, "the draft vocabulary is part of the target's"
        assert self.has_embedding or self.hidden_size == self.target_hidden_size, "the target's table must fit"
        assert layer.norm_inputs and not layer.norm_outputs and not layer.parallel, "a plain layer"
        assert isinstance(layer.feed_forward, MlpSpec) and layer.attention.kv_source is None, "a plain layer"

    @property
    def arch(self) -> Arch:
        """The head's layer as a model of its own, which defines the layout of its KV cache."""
        return Arch(
            family="eagle3",
            vocab_size=self.vocab_size,
            hidden_size=self.hidden_size,
            layers=(self.layer,),
            norm=self.norm,
            max_positions=self.max_positions,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MedusaSpec:
    """Medusa: heads next to the target's own, each for a token further ahead."""

    num_heads: int
    num_layers: int
    """Layers of each head, before the matrix that computes its logits."""
    hidden_size: int
    """Hidden size of the target."""
    vocab_size: int
    """Size of the draft vocabulary."""
    target_vocab_size: int
    has_own_head: bool
    """Every head has an output matrix of its own; else all share the target's, or its rows of the draft vocabulary."""

    def __post_init__(self) -> None:
        assert self.num_heads > 0 and self.num_layers > 0, "at least one head with one layer is needed"
        assert self.vocab_size <= self.target_vocab_size, "the draft vocabulary is part of the target's"
