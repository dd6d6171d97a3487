"""What the scheduler asks of a step and what an executor answers: plain data that can be logged, replayed and sent.

Executors keep state by row: a sequence gets a row when it is started, and later chunks name only the row and what is
new. A row is free for another sequence once a plan starts one on it. A plan may be made before the results of earlier
ones are known: its chunks then start at tokens that only the executor has.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from archerfish.kvcache.pool import BlockId
from archerfish.kvcache.tables import BlockCopy, Blocks
from archerfish.request import SamplingParams, TokenLogprobs


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceStart:
    """Everything an executor must know of a sequence that takes up a row, for the first time or after preemption."""

    row: int
    tokens: tuple[int, ...]
    num_prompt_tokens: int
    blocks: tuple[tuple[BlockId | None, ...], ...]
    """Blocks it already shares, one tuple for each group; None where a window has passed."""
    params: SamplingParams
    seed: int
    stop_token_ids: tuple[int, ...]
    """Tokens that must not be drawn before min_tokens are written."""
    tenant: str = ""
    """Whose it is: texts of one are no hints for another."""


class Chunk(NamedTuple):
    """The tokens of one sequence that a step computes: positions start to start + length."""

    row: int
    start: int
    length: int
    samples: bool
    """The chunk reaches the sequence's last token, so the next one is drawn."""
    new_blocks: Blocks = ()
    """Blocks to append to the row's tables."""
    max_draft_tokens: int = 0
    """Draft tokens that the executor may add after a chunk that samples: blocks are reserved for so many."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One step."""

    step: int
    starts: list[SequenceStart]
    copies: list[BlockCopy]
    chunks: list[Chunk]
    max_draft_tokens: int = 0
    """Draft tokens that were planned for, per chunk; single chunks may have fewer."""
    others_wait: bool = False
    """Whether a waiting sequence starts as soon as a row is free. Only determined for executors that speculate."""

    @property
    def num_tokens(self) -> int:
        return sum(chunk.length for chunk in self.chunks)


@dataclass(slots=True)
class StepResult:
    """What became of a plan's chunks, in their order."""

    tokens: list[list[int]]
    """Tokens sampled for each chunk: none where it does not sample, one or more where it does.

    The scheduler takes them up to where the sequence ends and ignores the rest; the executor writes all of them to the
    row. The sequence's next chunk starts after this one and its draft tokens, or at the last token sampled if that is
    first: keys and values of tokens past it are computed then. More than one can be sampled only where the next step is
    not planned before this one's result is known.
    """
    logprobs: dict[int, list[TokenLogprobs]] = field(default_factory=dict)
    """By chunk, one entry for each token drawn."""
    prompt_logprobs: dict[int, list[TokenLogprobs]] = field(default_factory=dict)
    """By chunk, for the prompt tokens that follow the chunk's tokens."""
    embeddings: dict[int, list[float]] = field(default_factory=dict)
    """By chunk, the mean state over the prompt that ends with it, for rows that request it."""
    states: dict[int, bytes] = field(default_factory=dict)
    """By chunk, the state of each token of the prompt that ends with it, likewise: float32, row after row."""
    failures: dict[int, str] = field(default_factory=dict)
    """By chunk, why its sequence cannot go on."""
    num_draft_tokens: dict[int, int] = field(default_factory=dict)
    """Draft tokens verified, by chunk. `len(tokens[chunk]) - 1` of them were accepted."""
    drafting_seconds: float = 0.0
    """Seconds spent on proposing draft tokens."""
    saved_seconds: float = 0.0
    """Estimated seconds that speculation saved: what the tokens would have taken without it, minus what they took."""
    max_draft_tokens: int | None = None
    """Draft tokens that each chunk of the next step may have; None from executors that never speculate."""
