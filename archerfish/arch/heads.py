"""The shape of small networks that guess what a model will write, from its own inner states. No torch, no files."""

from dataclasses import dataclass

from archerfish.arch.arch import Arch, LayerSpec, MlpSpec, NormSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class EagleSpec:
    """EAGLE-3: one layer that reads the target's stream at several depths, and then what it gave itself."""

    hidden_size: int
    target_hidden_size: int
    target_layers: tuple[int, ...]
    """Where the target's stream is tapped: as these layers take it; their number itself is what the last one gives."""
    layer: LayerSpec
    norm: NormSpec
    vocab_size: int
    """Tokens it can guess."""
    target_vocab_size: int
    has_embedding: bool
    """A table of its own; else the target's, as it is stored."""
    norm_before_residual: bool
    """The layer's sum begins with the normalized state, not with the state."""
    max_positions: int

    def __post_init__(self) -> None:
        layer = self.layer
        assert self.target_layers, "it reads at least one depth of the target"
        assert self.vocab_size <= self.target_vocab_size, "what it can guess are tokens of the target"
        assert self.has_embedding or self.hidden_size == self.target_hidden_size, "the target's table must fit"
        assert layer.norm_inputs and not layer.norm_outputs and not layer.parallel, "a plain layer"
        assert isinstance(layer.feed_forward, MlpSpec) and layer.attention.kv_source is None, "a plain layer"

    @property
    def arch(self) -> Arch:
        """Its layer as a model of its own: what a cache for its keys and values is laid out by."""
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
    """Medusa: heads beside the target's own, each for a token further on."""

    num_heads: int
    num_layers: int
    """Of each head, before the product that gives its logits."""
    hidden_size: int
    """The target's."""
    vocab_size: int
    """Tokens it can guess."""
    target_vocab_size: int
    has_own_head: bool
    """Every head ends in a matrix of its own; else the target's serves all of them, or its rows of these tokens."""

    def __post_init__(self) -> None:
        assert self.num_heads > 0 and self.num_layers > 0, "something must guess"
        assert self.vocab_size <= self.target_vocab_size, "what it can guess are tokens of the target"
