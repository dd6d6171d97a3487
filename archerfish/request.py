"""Requests and token events as plain data."""

from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import NamedTuple

from archerfish.checks import check_float
from archerfish.sampling_params import GREEDY_BELOW as GREEDY_BELOW
from archerfish.sampling_params import MAX_DRAFT_TOKENS as MAX_DRAFT_TOKENS
from archerfish.sampling_params import METHOD_ALIASES as METHOD_ALIASES
from archerfish.sampling_params import RequestOutputKind as RequestOutputKind
from archerfish.sampling_params import SamplingParams as SamplingParams
from archerfish.sampling_params import Speculation as Speculation
from archerfish.sampling_params import Verification as Verification
from archerfish.structured_outputs import Structured as Structured

LARGEST_PRIORITY = 2**31 - 1
"""Of a request, in either direction. Every number of a request fits the wire to the engine process."""
LARGEST_SLO_MS = 1e9
"""Eleven days: more than that is no objective."""


class RequestClass(IntEnum):
    """Which work goes first. Batch work fills what online work leaves."""

    ONLINE = 0
    BATCH = 1


class FinishReason(Enum):
    """Why a sequence ended, in the words of OpenAI's API where it has one."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


@dataclass(frozen=True, slots=True, kw_only=True)
class SLO:
    """What a request must meet to count as goodput."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None

    def __post_init__(self) -> None:
        for name in ("ttft_ms", "tpot_ms"):
            if getattr(self, name) is not None:
                check_float(f"slo.{name}", getattr(self, name), 0.0, LARGEST_SLO_MS, open_below=True)


class Best(NamedTuple):
    """Of a request's answers, those with the highest mean log-probability of a token."""

    num_answers: int
    shows_logprobs: bool
    """Whether log-probabilities were asked for; without them the answers could not be compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What a client asked for, as the engine takes it."""

    request_id: str
    """The engine's own name for this submission: made for it alone, and never used again."""
    prompt_token_ids: tuple[int, ...]
    params: SamplingParams
    arrival_time: float
    external_id: str = ""
    """The client's name for the request, for logs and replies. It may repeat, and nothing is looked up by it."""
    request_class: RequestClass = RequestClass.ONLINE
    priority: int = 0
    """Lower goes first within a class."""
    cache_salt: str = ""
    """Requests share cached prefixes only with requests of the same salt."""
    slo: SLO | None = None
    tenant: str = ""
    position: int = 0
    """Prompts of the same body that come before this one. Other requests may pass those behind the first few."""
    best: "Best | None" = None
    """Which of the n answers are returned, if not all."""


class TokenLogprob(NamedTuple):
    token_id: int
    logprob: float


class TokenLogprobs(NamedTuple):
    """How likely one token was, and the likeliest ones at its place."""

    token_id: int
    logprob: float
    rank: int
    """1 for the likeliest token."""
    top: list[TokenLogprob]
    """Likeliest first."""


class TokenEvent(NamedTuple):
    """News of one sequence after a step: tokens it grew by, and whether it ended."""

    request_id: str
    sequence_index: int
    """Which of the request's n sequences."""
    token_ids: list[int]
    logprobs: list[TokenLogprobs] | None = None
    prompt_logprobs: list[TokenLogprobs] | None = None
    """For prompt tokens 1, 2, ... in order, as far as this step computed them; the first has no probability."""
    num_cached_tokens: int = 0
    """Prompt tokens that came from the cache when the sequence was first scheduled."""
    scheduled_time: float | None = None
    """When the sequence first left the queue."""
    finish_reason: FinishReason | None = None
    stop_reason: int | None = None
    """The token id that ended the sequence, if it was one the request named."""
    error: str | None = None
    prompt_embedding: list[float] | None = None
    """With the first token, for requests that asked."""
    prompt_states: bytes | None = None
    """The same for the last layer's state of each prompt token: float32, one row after the other."""
    num_draft_tokens: int = 0
    """Draft tokens that were verified in this step."""
    num_accepted_tokens: int = 0
    """Draft tokens that were accepted, even past the sequence's end."""
