"""Sizes the KV cache from a memory budget, or says what does not fit and which setting would make it fit."""

from dataclasses import dataclass

from archerfish.arch.arch import Arch, ExpertsSpec
from archerfish.arch.cost import weight_bytes
from archerfish.config.numbers import format_bytes
from archerfish.config.resolve import ResolvedConfig
from archerfish.errors import DoesNotFit
from archerfish.kvcache.layout import KVLayout
from archerfish.kvcache.tables import blocks_held

_LOGIT_COPIES = 4  # Logits, edited logits, filtered logits, noise: all float32.


@dataclass(frozen=True, slots=True)
class CacheSize:
    """What the KV cache comes to."""

    num_blocks: int
    block_size: int
    num_bytes: int
    max_model_len: int
    blocks_per_request: int
    """Blocks that one request of max_model_len tokens holds at most."""

    @property
    def num_requests(self) -> float:
        """Requests of the longest context that fit at once."""
        return self.num_blocks / self.blocks_per_request

    @property
    def num_tokens(self) -> int:
        """Tokens that fit, in requests of the longest context."""
        return int(self.num_requests * self.max_model_len)

    def __str__(self) -> str:
        requests = f"{self.num_requests:,.0f}" if self.num_requests >= 10 else f"{self.num_requests:.1f}"
        return f"KV cache: {self.num_tokens:,} tokens, {requests} requests of {self.max_model_len:,} tokens at once"


def size_cache(config: ResolvedConfig, arch: Arch, layout: KVLayout, available: int, bytes_per_value: int) -> CacheSize:
    """As many blocks as the budget holds, but no more than max_num_seqs requests of full length could use.

    `available` is the device's memory that is free before weights are loaded.
    """
    block_bytes = layout.block_bytes(config.block_size, bytes_per_value)
    needed = _blocks_per_request(config, layout, config.max_model_len)
    weights = int(weight_bytes(arch, bytes_per_value))
    activations = activation_bytes(arch, config, bytes_per_value)
    if config.kv_cache_memory_bytes is not None:
        budget = config.kv_cache_memory_bytes
    else:
        budget = int(available * config.gpu_memory_utilization) - weights - activations
    num_blocks = min(budget // block_bytes, config.max_num_seqs * needed)
    if num_blocks < needed or weights + activations + needed * block_bytes > available:
        raise _does_not_fit(config, layout, available, (weights, activations, budget, needed * block_bytes))
    return CacheSize(num_blocks, config.block_size, num_blocks * block_bytes, config.max_model_len, needed)


def activation_bytes(arch: Arch, config: ResolvedConfig, bytes_per_value: int) -> int:
    """Most memory a step's intermediate values take: the widest layer for every token, and the logits."""
    widest = 0
    for layer in arch.layers:
        part = layer.feed_forward
        inner = part.size * (3 if isinstance(part, ExpertsSpec) or part.gated else 2)
        if isinstance(part, ExpertsSpec):
            inner *= part.num_experts_per_token
        widest = max(widest, 4 * arch.hidden_size + inner, 4 * arch.hidden_size + 3 * layer.attention.qkv_width)
    step = config.max_num_batched_tokens * widest * bytes_per_value
    logits = min(config.max_num_seqs, config.max_num_batched_tokens) * arch.vocab_size * 4 * _LOGIT_COPIES
    return step + logits


def _blocks_per_request(config: ResolvedConfig, layout: KVLayout, length: int) -> int:
    return blocks_held(length, layout.windows, config.block_size, config.max_num_batched_tokens)


def _does_not_fit(
    config: ResolvedConfig, layout: KVLayout, available: int, parts: tuple[int, int, int, int]
) -> DoesNotFit:
    weights, activations, budget, kv = parts
    rows = [
        ("weights", weights),
        ("activations", activations),
        (f"KV cache of one request of {config.max_model_len} tokens", kv),
        ("needed", weights + activations + kv),
        ("available", available),
    ]
    if config.kv_cache_memory_bytes is not None:
        rows.append(("allowed for the KV cache (--kv-cache-memory-bytes)", budget))
    else:
        rows.append(
            (
                f"usable at --gpu-memory-utilization {config.gpu_memory_utilization:g}",
                int(available * config.gpu_memory_utilization),
            )
        )
    table = "\n".join(f"  {name:<52} {format_bytes(value):>12}" for name, value in rows)
    return DoesNotFit(f"the model does not fit in memory.\n{table}\n{_remedy(config, layout, available, parts)}")


def _remedy(config: ResolvedConfig, layout: KVLayout, available: int, parts: tuple[int, int, int, int]) -> str:
    """The flag and the value that would make it fit."""
    weights, activations, budget, kv = parts
    needed = weights + activations + kv
    if needed <= available:
        if config.kv_cache_memory_bytes is not None:
            return f"Use --kv-cache-memory-bytes {kv}, or a smaller --max-model-len."
        share = -(-needed * 100 // available) / 100
        if share <= 1:
            return f"Use --gpu-memory-utilization {share:g}, or a smaller --max-model-len."
    length = _longest_that_fits(config, layout, available - weights - activations, kv)
    if length >= 2:
        extra = "" if config.kv_cache_memory_bytes is not None else " --gpu-memory-utilization 1"
        return f"Use --max-model-len {length}{extra}."
    if weights + activations > available and weights < available:
        return f"Use smaller steps: --max-num-batched-tokens {max(1, config.max_num_batched_tokens // 4)} --max-num-seqs 8."
    return f"The weights alone need {format_bytes(weights)} of {format_bytes(available)}: use a smaller model."


def _longest_that_fits(config: ResolvedConfig, layout: KVLayout, budget: int, kv: int) -> int:
    """Longest context whose KV cache fits the budget, in whole blocks."""
    if config.kv_cache_memory_bytes is not None:
        budget = min(budget, config.kv_cache_memory_bytes)
    num_blocks = max(0, budget) * _blocks_per_request(config, layout, config.max_model_len) // kv
    low, high = 0, config.max_model_len // config.block_size
    while low < high:
        middle = (low + high + 1) // 2
        fits = _blocks_per_request(config, layout, middle * config.block_size) <= num_blocks
        low, high = (middle, high) if fits else (low, middle - 1)
    return low * config.block_size
