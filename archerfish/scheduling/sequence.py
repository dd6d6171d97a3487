"""One stream of tokens that is generated for a request. Its one measure of progress is length - computed."""

from dataclasses import replace
from typing import NamedTuple

from archerfish.kvcache.tables import BlockHashes, BlockTable
from archerfish.request import Request, SamplingParams

_MASK = 2**64 - 1

_FIRST_FEW = 8
"""Sequences of one body that are scheduled like single requests; the others are bulk work."""
_BULK_SPACING = 30.0
"""Seconds by which each further group of so many is ordered as if it had arrived later."""


class SequenceFacts(NamedTuple):
    """Facts that all sequences of an engine share."""

    block_size: int
    max_model_len: int
    eos_token_ids: tuple[int, ...]


class Sequence:
    """Mutable state of a sequence; only the scheduler changes it."""

    __slots__ = (
        "block_hashes",
        "computed",
        "draws_on_host",
        "ended",
        "index",
        "is_bulk",
        "length",
        "length_limit",
        "max_draft_tokens",
        "num_cached_tokens",
        "num_prompt_logprobs",
        "num_prompt_tokens",
        "order",
        "params",
        "parent",
        "prompt_served",
        "request",
        "row",
        "scheduled_time",
        "seed",
        "siblings",
        "stop_token_ids",
        "stops_after",
        "stored",
        "table",
        "tokens",
        "wants_logprobs",
    )

    def __init__(self, request: Request, number: int, index: int, seed: int, facts: "SequenceFacts") -> None:
        params = request.params if index == 0 else _without_prompt_outputs(request.params)
        self.request = request
        self.params = params
        self.index = index
        self.seed = sequence_seed(seed, index)
        self.tokens = list(request.prompt_token_ids)
        """Tokens that are known, in contrast to those still in flight."""
        self.num_prompt_tokens = len(self.tokens)
        self.length = len(self.tokens)
        """How many tokens it has, counting one for each draw that is in flight."""
        self.computed = 0
        """How many of them have their keys and values stored, or will once the steps in flight are done."""
        self.stored = 0
        """How many tokens have them stored for certain: a step in flight may still fail."""
        self.ended = False
        self.table: BlockTable | None = None
        """None while waiting."""
        self.row = 0
        self.block_hashes = BlockHashes(request.cache_salt, facts.block_size)
        self.siblings: list[Sequence] = [self]
        """The request's sequences that have not ended, this one included; all of them share the list."""
        self.parent: Sequence | None = None
        """The sequence to fork from when admitted, if it still has what is needed."""
        self.stop_token_ids = frozenset((*params.stop_token_ids, *(() if params.ignore_eos else facts.eos_token_ids)))
        self.stops_after = self.num_prompt_tokens + params.min_tokens
        limit = facts.max_model_len if params.max_tokens is None else self.num_prompt_tokens + params.max_tokens
        self.length_limit = min(limit, facts.max_model_len)
        self.max_draft_tokens = None if params.speculation is None else params.speculation.max_draft_tokens
        """In a step, as its request says; None as many as the executor likes."""
        few_before = (request.position * params.n + index) // _FIRST_FEW
        self.is_bulk = few_before > 0
        """Whether it is one of many sequences of a body, and not among the first: those of other bodies may pass it."""
        arrival = request.arrival_time + _BULK_SPACING * few_before
        self.order = (request.request_class, request.priority, arrival, number, index)
        """Order among a tenant's sequences: the smallest is admitted first. The largest of all is preempted first."""
        self.num_cached_tokens = 0
        self.num_prompt_logprobs = 0
        """How many prompt tokens' log-probabilities have been reported."""
        self.prompt_served = 0
        """Prompt tokens that were computed, however often, or came from the cache: what the tenant has received."""
        self.scheduled_time: float | None = None
        """When it first left the queue."""
        self.wants_logprobs = params.logprobs is not None or params.prompt_logprobs is not None
        self.draws_on_host = params.structured is not None
        """Whether each draw must wait until the last token is known here: the host advances grammars."""

    @property
    def todo(self) -> int:
        """Tokens whose keys and values are still to be computed."""
        return self.length - self.computed


def _without_prompt_outputs(params: SamplingParams) -> SamplingParams:
    """Return parameters for the other sequences of a request: what is computed of its prompt comes with the first."""
    if params.prompt_logprobs is None and not params.prompt_embedding and not params.prompt_states:
        return params
    return replace(params, prompt_logprobs=None, prompt_embedding=False, prompt_states=False)


def open_sequences(request: Request, number: int, seed: int, facts: SequenceFacts) -> list[Sequence]:
    """Return the n sequences of a request, which share the list of them."""
    sequences = [Sequence(request, number, index, seed, facts) for index in range(request.params.n)]
    for sequence in sequences:
        sequence.siblings = sequences
    return sequences


def sequence_seed(seed: int, index: int) -> int:
    """Return the seed of a request's index-th sequence: the first has the request's own, the others scrambled ones."""
    if index == 0:
        return seed
    x = (seed + index * 0x9E3779B97F4A7C15) & _MASK  # splitmix64
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)
