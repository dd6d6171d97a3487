"""Sizes the KV cache from a memory budget, or says what does not fit and which setting would make it fit."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from archerfish.arch.arch import Arch, ExpertsSpec, MlpSpec
from archerfish.arch.cost import weight_bytes
from archerfish.config.numbers import format_bytes
from archerfish.config.resolve import ResolvedConfig
from archerfish.config.settings import flag_name
from archerfish.errors import DoesNotFit
from archerfish.kvcache.layout import KVLayout
from archerfish.kvcache.tables import blocks_held
from archerfish.ops.reference.attention import KEYS_PER_TILE
from archerfish.sampling.sampler import ROWS_AT_ONCE

# Float32 copies that are alive concurrently, as measured with a profiler.
_LOGIT_COPIES = 3
_DRAW_COPIES = 10
_LOGPROB_COPIES = 5
_SCORE_COPIES = 3

LOGIT_ROWS_AT_ONCE = 128
"""Prompt tokens whose logits are computed together: those of a whole prompt can exceed everything else in a step."""

_USUAL_BLOCK_SIZE = 16
_MAX_SUGGESTED_UTILIZATION = 0.95  # A machine without any free memory is unusable.


@dataclass(frozen=True, slots=True)
class CacheSize:
    """The size of the KV cache."""

    num_blocks: int
    num_bytes: int
    max_model_len: int
    blocks_per_request: int
    """Blocks that one request of max_model_len tokens holds at most."""

    @property
    def num_requests(self) -> float:
        """Requests of the longest context that fit concurrently."""
        return self.num_blocks / self.blocks_per_request

    @property
    def num_tokens(self) -> int:
        """Tokens that fit, in requests of the longest context."""
        return self.num_blocks * self.max_model_len // self.blocks_per_request

    def __str__(self) -> str:
        requests = f"{self.num_requests:,.0f}" if self.num_requests >= 10 else f"{self.num_requests:.1f}"
        return f"KV cache: {self.num_tokens:,} tokens, {requests} requests of {self.max_model_len:,} tokens at once"


@dataclass(frozen=True, slots=True)
class MeasuredMemory:
    """Bytes measured on a device, which replace estimates."""

    weights: int
    activations: int
    """Bytes of the largest step, with everything else that is neither weights nor cache."""
    config: ResolvedConfig
    """Settings that determined the size of that step."""


@dataclass(frozen=True, slots=True)
class DrafterMemory:
    """Bytes that a drafter takes in addition to the model."""

    weights: int = 0
    per_token: int = 0
    """Bytes in the KV cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryOption:
    """A setting that makes weights or the KV cache smaller without serving any less."""

    setting: str
    """The flag with its value."""
    bytes_per_weight: float | None = None
    """Bytes with this setting; None where it changes nothing."""
    bytes_per_kv_value: float | None = None
    drops_drafter: bool = False
    is_lossy: bool = True

    def __str__(self) -> str:
        return f"{self.setting} (lossy)" if self.is_lossy else self.setting


@dataclass(frozen=True, slots=True)
class MemoryBudget:
    """The bytes that a model takes and those that the device has, before weights are loaded."""

    arch: Arch
    layout: KVLayout
    available: int
    bytes_per_value: int
    """Bytes of a value, unless one of the next fields differs."""
    bytes_per_kv_value: float | None = None
    """Bytes of a value in the KV cache, with its share of a scale."""
    bytes_per_weight: float | None = None
    bytes_per_activation: int | None = None
    measured: MeasuredMemory | None = None
    drafter: DrafterMemory = DrafterMemory()
    options: tuple[MemoryOption, ...] = ()
    """Settings worth naming where something does not fit; of each kind the least lossy first."""

    def size_cache(self, config: ResolvedConfig) -> CacheSize:
        """Return the cache of as many blocks as fit, but no more than max_num_seqs full-length requests could use."""
        size = self.fit(config)
        if size is None:
            raise self.refusal(config)
        return size

    def refusal(self, config: ResolvedConfig) -> DoesNotFit:
        """Return an error with what is needed, what is available, and what would make it fit."""
        return DoesNotFit(f"the model does not fit in memory.\n{self._table(config)}\n{self.remedy(config)}")

    @property
    def weights(self) -> int:
        if self.measured is not None:
            return self.measured.weights
        return int(weight_bytes(self.arch, self.bytes_per_weight or self.bytes_per_value)) + self.drafter.weights

    @property
    def model_weights(self) -> int:
        """Bytes of the model's own weights, without a drafter's."""
        return self.weights - self.drafter.weights

    def kv_bytes_per_token(self, config: ResolvedConfig) -> float:
        """Bytes of the KV cache that a token takes, with the drafter's share."""
        return self.block_bytes(config) * len(self.layout.windows) / config.block_size

    def activations(self, config: ResolvedConfig) -> int:
        """Return the peak bytes of a step's activations; of steps of another size than measured, in proportion."""
        if self.measured is None:
            return self._estimate(config)
        share = self._estimate(config) / self._estimate(self.measured.config)
        # Sampling on the host (log-probabilities, penalties) makes copies that the measured step did not.
        return max(int(self.measured.activations * share), self._logits(config))

    def _estimate(self, config: ResolvedConfig) -> int:
        """The widest layer, then attention or the logits.

        Counted for the reference operations, which work in float32 and make the most copies.
        """
        tokens = config.max_num_batched_tokens
        widest = scores = 0
        for layer in self.arch.layers:
            attention, hidden = layer.attention, 4 * self.arch.hidden_size
            inner = _inner_width(layer.feed_forward, self.arch.hidden_size)
            widest = max(widest, hidden + inner, hidden + 3 * attention.qkv_width)
            scores = max(scores, _SCORE_COPIES * attention.num_heads * KEYS_PER_TILE + 4 * attention.q_width)
        scores_or_logits = max(tokens * scores * 4, self._logits(config))
        return tokens * widest * (self.bytes_per_activation or self.bytes_per_value) + scores_or_logits

    def _logits(self, config: ResolvedConfig) -> int:
        """Return the bytes of logits and the copies made of them, in float32."""
        tokens = config.max_num_batched_tokens
        drawing = min(config.max_drawn, tokens)
        drawn = drawing + _DRAW_COPIES * min(ROWS_AT_ONCE, drawing)  # All rows have logits; some are worked on.
        logprobs = _LOGPROB_COPIES * min(LOGIT_ROWS_AT_ONCE, tokens)
        return max(_LOGIT_COPIES * drawing, drawn, logprobs) * self.arch.vocab_size * 4

    def bytes_per_request(self, config: ResolvedConfig) -> int:
        """Return the bytes of the KV cache that a single request of full length holds."""
        return self._blocks_per_request(config) * self.block_bytes(config)

    def needed(self, config: ResolvedConfig) -> int:
        """Return the bytes of the minimum: weights, activations, and the cache of one request."""
        return self.weights + self.activations(config) + self.bytes_per_request(config)

    def usable(self, config: ResolvedConfig) -> int:
        """Return the bytes that may be used, where the size of the cache is not given."""
        return int(self.available * config.gpu_memory_utilization)

    def fit(self, config: ResolvedConfig) -> CacheSize | None:
        """Return the cache that fits; None if not even one request does, or a given size exceeds the memory."""
        rest = self.weights + self.activations(config)
        budget = config.kv_cache_memory_bytes
        if budget is None:
            budget = self.usable(config) - rest
        per_request = self._blocks_per_request(config)
        num_blocks = min(budget // self.block_bytes(config), config.max_num_seqs * per_request)
        num_bytes = num_blocks * self.block_bytes(config)
        if num_blocks < per_request or rest + num_bytes > self.available:
            return None
        return CacheSize(num_blocks, num_bytes, config.max_model_len, per_request)

    def _blocks_per_request(self, config: ResolvedConfig) -> int:
        windows, step_tokens = self.layout.windows, config.max_num_batched_tokens
        return blocks_held(config.max_model_len, windows, config.block_size, step_tokens)

    def block_bytes(self, config: ResolvedConfig) -> int:
        """Return the bytes of a cache block, with the drafter's share."""
        own = self.layout.block_bytes(config.block_size, self.bytes_per_kv_value or self.bytes_per_value)
        return own + self.drafter.per_token * config.block_size

    # -- errors -------------------------------------------------------------------------------------------------------

    def _table(self, config: ResolvedConfig) -> str:
        rows = [
            ("weights", self.weights),
            ("activations", self.activations(config)),
            (f"KV cache of one request of {config.max_model_len} tokens", self.bytes_per_request(config)),
            ("needed", self.needed(config)),
            ("available", self.available),
        ]
        if config.kv_cache_memory_bytes is not None:
            rows.append(("allowed for the KV cache (--kv-cache-memory-bytes)", config.kv_cache_memory_bytes))
        else:
            usable = f"usable at --gpu-memory-utilization {config.gpu_memory_utilization:g}"
            rows.append((usable, self.usable(config)))
        return "\n".join(f"  {name:<52} {format_bytes(value):>12}" for name, value in rows)

    def suggestion(self, config: ResolvedConfig) -> dict[str, Any] | None:
        """Return the first change of settings that makes it fit; None if there is none."""
        changed = (changes for changes in self._remedies(config) if self.fit(replace(config, **changes)) is not None)
        return next(changed, None)

    def remedy(self, config: ResolvedConfig) -> str:
        """Return what would make it fit: settings of the service first, then smaller formats with their effect."""
        changes = self.suggestion(config)
        remedies = [] if changes is None else [_flags(changes)]
        remedies += [f"{option}: {effect}" for option, effect in self._options_that_fit(config)]
        if not remedies:
            remedies += self._combined_remedy(config)
        if remedies:
            return " ".join(f"{'Or use' if index else 'Use'} {remedy}." for index, remedy in enumerate(remedies))
        left = max(0, self.available - self.weights)
        return f"The weights leave {format_bytes(left)} for everything else: use a smaller model, or more memory."

    def _options_that_fit(self, config: ResolvedConfig) -> list[tuple[MemoryOption, str]]:
        """Return options that suffice alone, of each kind one."""
        sufficient: dict[str, tuple[MemoryOption, str]] = {}
        for option in self.options:
            smaller = self._with(option)
            if smaller.fit(config) is not None:
                sufficient.setdefault(option.setting.split()[0], (option, self._effect(smaller, config)))
        return list(sufficient.values())

    def _combined_remedy(self, config: ResolvedConfig) -> list[str]:
        """Return the first option that suffices together with other settings."""
        for option in self.options:
            smaller = self._with(option)
            changes = smaller.suggestion(config)
            if changes is not None:
                return [f"{option} {_flags(changes)}: {self._effect(smaller, config)}"]
        return []

    def _with(self, option: MemoryOption) -> "MemoryBudget":
        measured, full = self.measured, self.bytes_per_weight or self.bytes_per_value
        if measured is not None:
            share = (option.bytes_per_weight or full) / full
            measured = replace(measured, weights=int(measured.weights * share))
        return replace(
            self,
            bytes_per_weight=option.bytes_per_weight or self.bytes_per_weight,
            bytes_per_kv_value=option.bytes_per_kv_value or self.bytes_per_kv_value,
            drafter=DrafterMemory() if option.drops_drafter else self.drafter,
            measured=measured,
        )

    def _effect(self, smaller: "MemoryBudget", config: ResolvedConfig) -> str:
        """Describe what an option changes."""
        parts = (
            ("weights of", self.weights, smaller.weights),
            ("a KV cache per request of", self.bytes_per_request(config), smaller.bytes_per_request(config)),
        )
        changed = [
            f"{name} {format_bytes(after)} instead of {format_bytes(before)}"
            for name, before, after in parts
            if after < before
        ]
        return " and ".join(changed)

    def _remedies(self, config: ResolvedConfig) -> Iterator[dict[str, Any]]:
        """Yield changes of settings to try: more memory, shorter contexts, then smaller and smaller steps."""
        if config.block_size > max(_USUAL_BLOCK_SIZE, config.max_model_len):
            yield {"block_size": _USUAL_BLOCK_SIZE}  # Most of a block would never be used.
        steps: dict[str, Any] = {}
        while True:
            changed = replace(config, **steps)
            most = max(config.gpu_memory_utilization, _MAX_SUGGESTED_UTILIZATION)
            unbounded = replace(changed, kv_cache_memory_bytes=None, gpu_memory_utilization=most)
            shortened = replace(changed, max_model_len=self._longest(unbounded))
            if config.kv_cache_memory_bytes is None:
                yield {**steps, "gpu_memory_utilization": self._share(changed, most)}
                yield {**steps, "max_model_len": self._longest(changed)}
                yield {**steps, "max_model_len": shortened.max_model_len, "gpu_memory_utilization": most}
            else:
                yield {**steps, "kv_cache_memory_bytes": self.bytes_per_request(changed)}
                size = self.bytes_per_request(shortened)
                yield {**steps, "max_model_len": shortened.max_model_len, "kv_cache_memory_bytes": size}
            if changed.max_num_batched_tokens == 1:
                return
            steps = {
                "max_num_batched_tokens": changed.max_num_batched_tokens // 2,
                "max_num_seqs": max(1, min(changed.max_num_seqs, changed.max_num_batched_tokens) // 2),
            }

    def _share(self, config: ResolvedConfig, most: float) -> float:
        """Return the memory utilization that one request needs, plus a margin: free memory varies between starts."""
        return min(most, (-(-self.needed(config) * 100 // max(1, self.available)) + 3) / 100)

    def _longest(self, config: ResolvedConfig) -> int:
        """Return the longest context that fits, in whole blocks; at least 2, whether it fits or not."""
        low, high = 0, config.max_model_len // config.block_size
        while low < high:
            middle = (low + high + 1) // 2
            fits = self.fit(replace(config, max_model_len=middle * config.block_size)) is not None
            low, high = (middle, high) if fits else (low, middle - 1)
        return max(2, low * config.block_size)


def _flags(changes: dict[str, Any]) -> str:
    return " ".join(f"{flag_name(name)} {value}" for name, value in changes.items())


def _inner_width(part: MlpSpec | ExpertsSpec, hidden_size: int) -> int:
    """Return the values of a token within the feed-forward part: gate, up, and their input or output."""
    if isinstance(part, ExpertsSpec):
        # A row for each expert that the token chose.
        return part.num_experts_per_token * (2 * part.size + max(part.size, hidden_size))
    return part.size * (3 if part.gated else 2)
