"""What a model costs: parameters, operations, bytes. Pure arithmetic over an Arch."""

from archerfish.arch.arch import Arch, AttentionSpec, ExpertsSpec, LayerSpec, NormSpec


def num_parameters(arch: Arch) -> int:
    """Numbers stored in the checkpoint; a tied head counts once."""
    embeddings = arch.vocab_size * arch.hidden_size
    positions = arch.max_positions * arch.hidden_size if arch.learned_positions else 0
    head = 0 if arch.tie_embeddings else embeddings
    head += arch.vocab_size if arch.head_bias else 0
    layers = sum(_layer_parameters(arch, layer) for layer in arch.layers)
    return embeddings + positions + head + layers + _norm_parameters(arch.norm, arch.hidden_size)


def num_active_parameters(arch: Arch) -> int:
    """Numbers that take part in a matrix product for one token: chosen experts, and the head but no embedding rows."""
    layers = sum(_matrix_parameters(arch, layer, active=True) for layer in arch.layers)
    return layers + arch.vocab_size * arch.hidden_size


def weight_bytes(arch: Arch, bytes_per_weight: float) -> float:
    return num_parameters(arch) * bytes_per_weight


def kv_bytes_per_token(arch: Arch, bytes_per_value: float) -> float:
    """Keys and values of one token over all layers that store their own."""
    return sum(_kv_values(layer.attention) for layer in arch.layers) * bytes_per_value


def kv_bytes(arch: Arch, length: int, bytes_per_value: float) -> float:
    """Keys and values a sequence of this length must keep; layers with a window keep no more than it."""
    total = 0
    for layer in arch.layers:
        kept = length if layer.attention.window is None else min(length, layer.attention.window)
        total += kept * _kv_values(layer.attention)
    return total * bytes_per_value


def flops_per_token(arch: Arch, context: int) -> float:
    """Operations to compute one token that sees `context` tokens, itself included, and its logits."""
    matrix = 2.0 * num_active_parameters(arch)
    attention = 0.0
    for layer in arch.layers:
        seen = context if layer.attention.window is None else min(context, layer.attention.window)
        attention += 4.0 * seen * layer.attention.q_width  # Scores, then their sum over the values.
    return matrix + attention


def flops(arch: Arch, start: int, num_tokens: int) -> float:
    """Operations to compute `num_tokens` tokens that follow `start` earlier ones."""
    matrix = 2.0 * num_active_parameters(arch) * num_tokens
    attention = 0.0
    for layer in arch.layers:
        seen = _sum_seen(start, num_tokens, layer.attention.window)
        attention += 4.0 * seen * layer.attention.q_width
    return matrix + attention


def _sum_seen(start: int, num_tokens: int, window: int | None) -> int:
    """Sum over the tokens of how many keys each sees."""

    def triangle(length: int) -> int:
        """1 + 2 + ... + length, each term capped at the window."""
        ramp = length if window is None else min(length, window)
        flat = 0 if window is None else max(0, length - window) * window
        return ramp * (ramp + 1) // 2 + flat

    return triangle(start + num_tokens) - triangle(start)


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
    """Biases, and the norms of queries and keys."""
    attention, feed_forward = layer.attention, layer.feed_forward
    total = attention.qkv_width * attention.qkv_bias + arch.hidden_size * attention.output_bias
    if attention.qk_norm is not None:
        widths = (attention.q_width, attention.kv_width) if attention.qk_norm == "width" else (attention.head_dim,) * 2
        total += widths[0] + (widths[1] if attention.kv_source is None else 0)
    if not isinstance(feed_forward, ExpertsSpec) and feed_forward.bias:
        total += feed_forward.size * (2 if feed_forward.gated else 1) + arch.hidden_size
    return total
