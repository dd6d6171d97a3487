"""What the engine's steps did, and what the engine process reports after each: plain numbers, small enough to send."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import NamedTuple, Protocol

from archerfish.arch.cost import StepCost, keys_read, keys_seen


@dataclass(slots=True)
class StepCounts:
    """Totals since the engine was built."""

    num_steps: int = 0
    num_computed_tokens: int = 0
    """Tokens that went through the model, prompt and answer alike."""
    num_generated_tokens: int = 0
    busy_time: float = 0.0
    """Seconds spent in steps."""
    num_drafts: int = 0
    """Sequences that had draft tokens, summed over steps."""
    num_draft_tokens: int = 0
    """Draft tokens that were verified."""
    num_accepted_tokens: int = 0
    """Those of them that were what would have been drawn."""
    accepted_per_position: list[int] = field(default_factory=list)
    """How often the first draft token of a sequence was accepted, the second, and so on."""
    drafting_time: float = 0.0
    """Seconds spent on proposing draft tokens. Verification is part of the step."""
    saved_seconds: float = 0.0
    """Estimated seconds saved by steps with draft tokens that took less than their tokens would have taken without."""
    lost_seconds: float = 0.0
    """Estimated seconds lost by those that took more."""

    def record(self, num_computed: int, num_generated: int, duration: float) -> None:
        self.num_steps += 1
        self.num_computed_tokens += num_computed
        self.num_generated_tokens += num_generated
        self.busy_time += duration

    def record_drafts(
        self, num_drafted: Mapping[int, int], drawn: Sequence[Sequence[int]], seconds: float, saved: float = 0.0
    ) -> None:
        """Count the draft tokens of a step, by chunk; the last of the drawn tokens of a chunk was never drafted.

        Savings and losses are counted separately, so that both totals only ever grow.
        """
        self.drafting_time += seconds
        self.saved_seconds += max(0.0, saved)
        self.lost_seconds += max(0.0, -saved)
        for index, count in num_drafted.items():
            num_accepted_tokens = max(0, len(drawn[index]) - 1)
            self.num_drafts += 1
            self.num_draft_tokens += count
            self.num_accepted_tokens += num_accepted_tokens
            self.accepted_per_position += [0] * (num_accepted_tokens - len(self.accepted_per_position))
            for depth in range(num_accepted_tokens):
                self.accepted_per_position[depth] += 1


class PlannedChunk(Protocol):
    """The tokens of one sequence that a step computes."""

    @property
    def start(self) -> int: ...
    @property
    def length(self) -> int: ...
    @property
    def samples(self) -> bool: ...


class LastStep(NamedTuple):
    """The chunks of a step as they were planned; aggregated only when they are read."""

    chunks: Sequence[PlannedChunk]
    num_tokens: int
    """Draft tokens among them."""
    seconds: float
    """From its plan to its commit, or from the commit before where that came later: steps may overlap."""
    num_draft_tokens: int = 0


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One step. Prefill is chunks of several tokens, decode chunks of one: what they cost differs just so."""

    prefill_tokens: int
    decode_tokens: int
    draft_tokens: int
    """Draft tokens that were verified; the decode tokens that they follow count apart."""
    num_sequences: int
    seconds: float
    prefill_flops: float = 0.0
    decode_flops: float = 0.0
    prefill_bytes: float = 0.0
    """Weights, by share of the tokens, and keys and values."""
    decode_bytes: float = 0.0

    @property
    def num_tokens(self) -> int:
        return self.prefill_tokens + self.decode_tokens + self.draft_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineInfo:
    """The settings that decide how much a step reads, and the bytes that they come to."""

    device: str
    dtype: str
    quantization: str
    kv_cache_dtype: str
    speculation: str
    """The method."""
    weight_bytes: int
    kv_bytes_per_token: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineState:
    """How the engine is now, and its totals since it was built."""

    time: float
    """Of the engine's clock."""
    num_running: int
    num_waiting: int
    num_waiting_tokens: int
    """Tokens that waiting sequences have to be computed, unless the cache holds them."""
    max_num_seqs: int
    max_num_batched_tokens: int
    num_blocks: int
    num_free_blocks: int
    num_cached_blocks: int
    num_blocks_in_use: int
    num_steps: int
    num_computed_tokens: int
    num_generated_tokens: int
    num_preemptions: int
    num_prefix_tokens_queried: int
    num_prefix_tokens_hit: int
    busy_time: float
    """Seconds spent in steps."""
    num_drafts: int = 0
    """Sequences that had draft tokens, summed over steps."""
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    """Draft tokens that were accepted."""
    accepted_per_position: tuple[int, ...] = ()
    """How often the first draft token of a sequence was accepted, the second, and so on."""
    drafting_time: float = 0.0
    """Seconds spent on proposing draft tokens."""
    saved_seconds: float = 0.0
    """Estimated seconds that speculation saved; `lost_seconds` is what it cost in steps that took longer for it."""
    lost_seconds: float = 0.0
    last_step: StepRecord | None = None
    """None before the first. Told again if nothing was computed since: num_steps says so."""


# -- what a step came to ----------------------------------------------------------------------------------------------
# Runs after every step, most chunks of which are single tokens: they are never taken one by one, only summed up.

_start = attrgetter("start")


def record_step(step: LastStep, cost: StepCost | None) -> StepRecord:
    """Tokens, operations and bytes of a step; without a cost, only its tokens."""
    chunks, num_tokens, seconds, num_draft_tokens = step
    prefill: Sequence[PlannedChunk] = ()
    if num_tokens - num_draft_tokens != len(chunks):
        prefill = [chunk for chunk in chunks if chunk.length > 1]
    num_decode = len(chunks) - len(prefill)
    num_prefill = num_tokens - num_draft_tokens - num_decode
    if cost is None:
        return StepRecord(num_prefill, num_decode, num_draft_tokens, len(chunks), seconds)
    # A prompt needs logits only at its end, where the next token is drawn.
    num_logits = sum([chunk.samples for chunk in prefill])
    num_checked = num_decode + num_draft_tokens  # Draft tokens read the keys that their chunk has read.
    weights = cost.weight_bytes(num_tokens, num_logits + num_checked) / num_tokens
    prefill_flops = num_prefill * cost.token_flops + num_logits * cost.logits_flops
    decode_flops = num_checked * (cost.token_flops + cost.logits_flops)
    prefill_bytes, decode_bytes = num_prefill * weights, num_checked * weights
    starts = list(map(_start, chunks))
    for reach in cost.reaches:
        window = reach.window
        # A single token reads the keys that it sees. Those of prefill's first tokens are taken off again.
        num_keys = _sum_first_seen(starts, window)
        for chunk in prefill:
            start, length = chunk.start, chunk.length
            num_keys -= start + 1 if window is None or start < window else window
            prefill_flops += keys_seen(start, length, window) * reach.flops_per_key
            prefill_bytes += keys_read(start, length, window) * reach.bytes_per_key
        decode_flops += num_keys * reach.flops_per_key
        decode_bytes += num_keys * reach.bytes_per_key
    return StepRecord(
        num_prefill,
        num_decode,
        num_draft_tokens,
        len(chunks),
        seconds,
        prefill_flops,
        decode_flops,
        prefill_bytes,
        decode_bytes,
    )


def _sum_first_seen(starts: list[int], window: int | None) -> int:
    """Keys that the first tokens of all chunks see."""
    if window is None or max(starts) < window:
        return sum(starts) + len(starts)
    return sum([start + 1 if start < window else window for start in starts])
