"""What a model costs: parameters, operations, bytes. Pure arithmetic over an Arch."""

from collections import Counter
from dataclasses import dataclass

from archerfish.arch.arch import Arch, AttentionSpec, ExpertsSpec, LayerSpec, NormSpec


def num_parameters(arch: Arch) -> int:
    """Return how many numbers the checkpoint stores; a tied head counts once."""
    embeddings = arch.vocab_size * arch.hidden_size
    positions = arch.max_positions * arch.hidden_size if arch.learned_positions else 0
    head = 0 if arch.tie_embeddings else embeddings
    head += arch.vocab_size if arch.head_bias else 0
    layers = sum(_layer_parameters(arch, layer) for layer in arch.layers)
    return embeddings + positions + head + layers + _norm_parameters(arch.norm, arch.hidden_size)


def num_active_parameters(arch: Arch) -> int:
    """Return how many numbers take part in a GEMM for one token: chosen experts, the head, no embedding
    rows."""
    layers = sum(_matrix_parameters(arch, layer, active=True) for layer in arch.layers)
    return layers + arch.vocab_size * arch.hidden_size


def num_router_parameters(arch: Arch) -> int:
    """Return how many numbers the routers have."""
    experts = (layer.feed_forward for layer in arch.layers if isinstance(layer.feed_forward, ExpertsSpec))
    return sum(arch.hidden_size * spec.num_experts for spec in experts)


def weight_bytes(arch: Arch, bytes_per_weight: float) -> float:
    return num_parameters(arch) * bytes_per_weight


def kv_bytes_per_token(arch: Arch, bytes_per_value: float) -> float:
    """Return the bytes of one token's keys and values over all layers that store their own."""
    return sum(_kv_values(layer.attention) for layer in arch.layers) * bytes_per_value


def kv_bytes(arch: Arch, length: int, bytes_per_value: float) -> float:
    """Return the bytes of keys and values that a sequence of this length stores; layers with a window store no more."""
    total = 0
    for layer in arch.layers:
        stored_length = length if layer.attention.window is None else min(length, layer.attention.window)
        total += stored_length * _kv_values(layer.attention)
    return total * bytes_per_value


def matrix_flops_per_token(arch: Arch) -> float:
    """Return the operations of the layers' GEMMs for one token, without attention and the head."""
    return 2.0 * sum(_matrix_parameters(arch, layer, active=True) for layer in arch.layers)


def logits_flops(arch: Arch) -> float:
    """Return the operations of the head for one position whose next token is drawn."""
    return 2.0 * arch.vocab_size * arch.hidden_size


def attention_flops(arch: Arch, start: int, num_tokens: int) -> float:
    """Return the operations of attention for `num_tokens` tokens that follow `start` earlier ones."""
    total = 0.0
    for layer in arch.layers:
        seen = keys_seen(start, num_tokens, layer.attention.window)
        total += 4.0 * seen * layer.attention.q_width  # Scores, then their sum over the values.
    return total


def flops_per_token(arch: Arch, context: int) -> float:
    """Return the operations that compute one token that attends to `context` tokens, itself included, and its
    logits."""
    return flops(arch, context - 1, 1)


def flops(arch: Arch, start: int, num_tokens: int) -> float:
    """Return the operations that compute `num_tokens` tokens after `start` earlier ones, and the logits of all of
    them."""
    return 2.0 * num_active_parameters(arch) * num_tokens + attention_flops(arch, start, num_tokens)


def kv_bytes_read(arch: Arch, start: int, num_tokens: int, bytes_per_value: float) -> float:
    """Return the bytes of keys and values that attention of one chunk reads, each once however many tokens attend to
    it.

    A layer that shares another's keys and values reads them again.
    """
    total = 0
    for layer in arch.layers:
        total += keys_read(start, num_tokens, layer.attention.window) * 2 * layer.attention.kv_width
    return total * bytes_per_value


def weight_bytes_read(arch: Arch, num_tokens: int, num_logits: int, bytes_per_weight: float) -> float:
    """Return the bytes of weights that a step reads, each once however many tokens it has: the head only where a token
    is drawn.

    Experts count if they are chosen at least once, all being equally likely. Embedding rows, one per token, are left
    out.
    """
    return step_cost(arch, bytes_per_weight, 0.0).weight_bytes(num_tokens, num_logits)


def keys_seen(start: int, num_tokens: int, window: int | None) -> int:
    """Return the sum over a chunk's tokens of how many keys each attends to."""

    def triangle(length: int) -> int:
        """Return 1 + 2 + ... + length, each term capped at the window."""
        ramp = length if window is None else min(length, window)
        flat = 0 if window is None else max(0, length - window) * window
        return ramp * (ramp + 1) // 2 + flat

    return triangle(start + num_tokens) - triangle(start)


def keys_read(start: int, num_tokens: int, window: int | None) -> int:
    """Return how many different keys a chunk's tokens attend to."""
    if num_tokens == 0:
        return 0
    return num_tokens + (start if window is None else min(start, window - 1))


# -- the same, worked out once for use in every step ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Reach:
    """All layers whose attention reaches equally far."""

    window: int | None
    flops_per_key: float
    """Operations for each token and each key that it attends to."""
    bytes_per_key: float
    """Bytes of a key and its value."""


@dataclass(frozen=True, slots=True)
class ExpertBytes:
    """All layers with equally many experts, of which a token chooses equally many."""

    num_experts: int
    num_per_token: int
    bytes_per_expert: float
    """Summed over the layers."""

    def read(self, num_tokens: int) -> float:
        """Return the expected bytes, if every expert is equally likely."""
        missed = (1 - self.num_per_token / self.num_experts) ** num_tokens
        return self.bytes_per_expert * self.num_experts * (1 - missed)


@dataclass(frozen=True, slots=True)
class StepCost:
    """The cost of a model's steps as rates: a step's operations and bytes are sums of a few products of them."""

    token_flops: float
    """Operations of one token's GEMMs."""
    logits_flops: float
    """Operations of the head for one token that is drawn."""
    layer_bytes: float
    """Bytes of weights that every step reads."""
    logits_bytes: float
    """Bytes of the head's weights."""
    experts: tuple[ExpertBytes, ...]
    reaches: tuple[Reach, ...]

    def weight_bytes(self, num_tokens: int, num_logits: int) -> float:
        """Return the bytes of weights that a step reads."""
        if not num_tokens:
            return 0.0
        experts = sum(experts.read(num_tokens) for experts in self.experts)
        return self.layer_bytes + experts + (self.logits_bytes if num_logits else 0.0)


def step_cost(arch: Arch, bytes_per_weight: float, bytes_per_value: float) -> StepCost:
    """Return the rates of a model whose weights, and keys and values, take so many bytes each."""
    layers, experts = 0, Counter[tuple[int, int]]()
    reaches: dict[int | None, tuple[int, int]] = {}
    for layer in arch.layers:
        attention, feed_forward = layer.attention, layer.feed_forward
        layers += _layer_parameters(arch, layer)
        if isinstance(feed_forward, ExpertsSpec):
            each = 3 * arch.hidden_size * feed_forward.size
            layers -= each * feed_forward.num_experts
            experts[feed_forward.num_experts, feed_forward.num_experts_per_token] += each
        q_width, kv_width = reaches.get(attention.window, (0, 0))
        reaches[attention.window] = (q_width + attention.q_width, kv_width + attention.kv_width)
    head = arch.vocab_size * arch.hidden_size + (arch.vocab_size if arch.head_bias else 0)
    return StepCost(
        token_flops=matrix_flops_per_token(arch),
        logits_flops=logits_flops(arch),
        layer_bytes=(layers + _norm_parameters(arch.norm, arch.hidden_size)) * bytes_per_weight,
        logits_bytes=head * bytes_per_weight,
        experts=tuple(ExpertBytes(*of, each * bytes_per_weight) for of, each in experts.items()),
        reaches=tuple(
            Reach(window, 4.0 * q_width, 2.0 * kv_width * bytes_per_value)
            for window, (q_width, kv_width) in reaches.items()
        ),
    )


def _kv_values(attention: AttentionSpec) -> int:
    return 0 if attention.kv_source is not None else 2 * attention.kv_width


def _norm_parameters(norm: NormSpec, width: int) -> int:
    return width * (2 if norm.kind == "layer" else 1)


def _layer_parameters(arch: Arch, layer: LayerSpec) -> int:
    num_norms = (1 if layer.shared_input_norm else 2) * layer.norm_inputs + 2 * layer.norm_outputs
    norms = num_norms * _norm_parameters(arch.norm, arch.hidden_size)
    return _matrix_parameters(arch, layer, active=False) + norms + _vector_parameters(arch, layer)


def _matrix_parameters(arch: Arch, layer: LayerSpec, *, active: bool) -> int:
    attention, feed_forward = layer.attention, layer.feed_forward
    total = arch.hidden_size * (attention.qkv_width + attention.q_width)
    if isinstance(feed_forward, ExpertsSpec):
        num_experts = feed_forward.num_experts_per_token if active else feed_forward.num_experts
        total += 3 * arch.hidden_size * feed_forward.size * num_experts
        return total + arch.hidden_size * feed_forward.num_experts  # The router.
    return total + (3 if feed_forward.gated else 2) * arch.hidden_size * feed_forward.size


def _vector_parameters(arch: Arch, layer: LayerSpec) -> int:
    """Return the numbers of biases, and of the norms of queries and keys."""
    attention, feed_forward = layer.attention, layer.feed_forward
    total = attention.qkv_width * attention.qkv_bias + arch.hidden_size * attention.output_bias
    if attention.qk_norm is not None:
        widths = (attention.q_width, attention.kv_width) if attention.qk_norm == "width" else (attention.head_dim,) * 2
        total += widths[0] + (widths[1] if attention.kv_source is None else 0)
    if not isinstance(feed_forward, ExpertsSpec) and feed_forward.bias:
        total += feed_forward.size * (2 if feed_forward.gated else 1) + arch.hidden_size
    return total
