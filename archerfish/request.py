"""What a client asks for and what it gets back, as plain data. Knows no torch, no scheduler, no tokenizer."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from enum import Enum, IntEnum
from typing import Any, Literal, NamedTuple, get_args

from archerfish.errors import InvalidParameter

GREEDY_BELOW = 1e-5
"""A temperature under this is greedy: dividing by it would only overflow."""

Verification = Literal["coupled", "rejection", "typical"]
"""Which guessed tokens stand. Coupled keeps the very tokens, rejection their distribution; typical is lossy."""
MOST_GUESSES = 63
"""For one sequence in one step."""

LARGEST_PRIORITY = 2**31 - 1
"""Of a request, in either direction. Every number of a request fits the wire to the engine process."""
LARGEST_SLO_MS = 1e9
"""Eleven days: more than that is no objective."""
_LARGEST_SEED = 2**64 - 1
_LARGEST_COUNT = 2**31 - 1
_LONGEST_TOKEN_ID = 10  # Digits.
_MOST_ANSWERS = 1024  # Each is a sequence from the start; a billion of them would be one small request.
_LONGEST_FORM = 2**18  # Rules that name one another can nest as deep as the text is long, and compilers descend.
_LARGEST_BIAS = 10_000.0  # Decides any draw, and leaves float32 logits far from overflow.


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
                _check_float(f"slo.{name}", getattr(self, name), 0.0, LARGEST_SLO_MS, open_below=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Structured:
    """What an answer must look like. Exactly one of these is given."""

    json_schema: str | None = None
    """A JSON schema, as JSON."""
    json_object: bool = False
    """Any JSON object."""
    regex: str | None = None
    choice: tuple[str, ...] = ()
    """One of these texts."""
    grammar: str | None = None
    """A context-free grammar, as Lark or llama.cpp (GBNF) write them."""

    def __post_init__(self) -> None:
        given = [f.name for f in fields(self) if getattr(self, f.name)]
        if len(given) != 1:
            raise InvalidParameter("structured", given, "exactly one way to say what the answer must be is needed")
        if not isinstance(self.json_object, bool):
            raise InvalidParameter("json_object", self.json_object, "it must be true or false")
        for name in ("json_schema", "regex", "grammar"):
            if not isinstance(getattr(self, name), (str, type(None))):
                raise InvalidParameter(name, getattr(self, name), "it must be a text")
        object.__setattr__(self, "choice", _as_tuple("choice", self.choice))
        if not all(isinstance(text, str) and text for text in self.choice):
            raise InvalidParameter("choice", self.choice, "it must be a list of texts that are not empty")
        length = sum(map(len, (self.json_schema or "", self.regex or "", self.grammar or "", *self.choice)))
        if length > _LONGEST_FORM:
            allowed = f"it must have at most {_LONGEST_FORM} characters"
            raise InvalidParameter(self.given, f"{length} characters", allowed)

    @property
    def given(self) -> str:
        """The name of the one field that is."""
        return next(f.name for f in fields(self) if getattr(self, f.name))


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculation:
    """How a request's tokens are guessed. What is None is as the service has it."""

    method: str | None = None
    """Who guesses for this request, of those that the engine has; off guesses nothing."""
    num_speculative_tokens: int | None = None
    """Most guesses that are checked in a step."""
    verification: Verification | None = None
    """Which guesses stand: coupled keeps the very tokens, rejection their distribution; typical is lossy."""

    def __post_init__(self) -> None:
        if self.method is not None and (not isinstance(self.method, str) or not self.method):
            raise InvalidParameter("speculation.method", self.method, "it must be the name of a method")
        if self.num_speculative_tokens is not None:
            _check_int("speculation.num_speculative_tokens", self.num_speculative_tokens, 1, MOST_GUESSES)
        if self.verification is not None and self.verification not in get_args(Verification):
            known = ", ".join(get_args(Verification))
            raise InvalidParameter("speculation.verification", self.verification, f"it must be one of {known}")
        given = [name for name in ("num_speculative_tokens", "verification") if getattr(self, name) is not None]
        if self.method == "off" and given:
            raise InvalidParameter(f"speculation.{given[0]}", getattr(self, given[0]), "with method = off leave it out")

    @property
    def most_guesses(self) -> int | None:
        """In a step; None as many as the service likes."""
        return 0 if self.method == "off" else self.num_speculative_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How tokens are chosen and when to stop. Checked when made: an instance is always valid."""

    n: int = 1
    """Number of answers to write for the prompt."""
    max_tokens: int | None = 16
    """Most tokens to write; without a limit (None) it writes until the context is full."""
    min_tokens: int = 0
    """Tokens to write before a stop token or stop string may end the answer."""
    temperature: float = 1.0
    """0 takes the likeliest token; larger values spread the choice."""
    top_k: int = 0
    """Keep the k likeliest tokens; 0 or -1 keeps all."""
    top_p: float = 1.0
    """Keep the smallest set of tokens whose probability reaches this."""
    min_p: float = 0.0
    """Keep tokens at least this likely relative to the likeliest."""
    repetition_penalty: float = 1.0
    """Above 1 makes tokens already in prompt or answer less likely."""
    presence_penalty: float = 0.0
    """Subtracted from the logit of every token already in the answer."""
    frequency_penalty: float = 0.0
    """Subtracted once for each time a token is already in the answer."""
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    """Added to the logits of these token ids."""
    allowed_token_ids: tuple[int, ...] | None = None
    """If given, only these token ids can be chosen."""
    stop: tuple[str, ...] = ()
    """Texts that end the answer."""
    stop_token_ids: tuple[int, ...] = ()
    """Token ids that end the answer, beside the model's own."""
    ignore_eos: bool = False
    """Write on past the model's end token."""
    include_stop_str_in_output: bool = False
    """Keep the stop text at the end of the answer."""
    skip_special_tokens: bool = True
    """Leave special tokens out of the text."""
    seed: int | None = None
    """Same seed, same tokens, in whatever batch. Without one, a seed is drawn."""
    logprobs: int | None = None
    """Log-probabilities of the chosen token and of this many likeliest ones."""
    prompt_logprobs: int | None = None
    """The same for the tokens of the prompt."""
    prompt_embedding: bool = False
    """Give the mean of the last layer's states over the prompt, too: what embeddings are made of."""
    structured: Structured | None = None
    """What the answer must look like: a JSON schema, a regular expression, one of several texts, a grammar."""
    speculation: Speculation | None = None
    """How tokens are guessed for this request, where it is not to be as the service has it."""

    def __post_init__(self) -> None:
        self._normalize()
        self._check()

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "SamplingParams":
        """As a client sends them. A name that is not a parameter is refused."""
        known = {f.name for f in fields(cls)}
        for name, value in values.items():
            if name not in known:
                raise InvalidParameter(name, value, f"there is no such parameter; known are {', '.join(sorted(known))}")
        return cls(**values)

    @property
    def is_greedy(self) -> bool:
        return self.temperature < GREEDY_BELOW

    def _normalize(self) -> None:
        """Accept what people write (one stop string, lists) and keep one form."""
        set_field = object.__setattr__
        stop: Any = self.stop
        set_field(self, "stop", (stop,) if isinstance(stop, str) else _as_tuple("stop", stop))
        set_field(self, "stop_token_ids", _as_tuple("stop_token_ids", self.stop_token_ids))
        if self.allowed_token_ids is not None:
            set_field(self, "allowed_token_ids", _as_tuple("allowed_token_ids", self.allowed_token_ids))
        if self.top_k == -1:
            set_field(self, "top_k", 0)
        set_field(self, "logit_bias", _as_bias(self.logit_bias))

    def _check(self) -> None:
        for name in ("ignore_eos", "include_stop_str_in_output", "skip_special_tokens", "prompt_embedding"):
            if not isinstance(getattr(self, name), bool):
                raise InvalidParameter(name, getattr(self, name), "it must be true or false")
        _check_int("n", self.n, 1, _MOST_ANSWERS)
        for name in ("min_tokens", "top_k"):
            _check_int(name, getattr(self, name), 0, _LARGEST_COUNT)
        for name, least in (("max_tokens", 1), ("logprobs", 0), ("prompt_logprobs", 0)):
            if getattr(self, name) is not None:
                _check_int(name, getattr(self, name), least, _LARGEST_COUNT)
        if self.seed is not None:
            _check_int("seed", self.seed, 0, _LARGEST_SEED)
        _check_float("temperature", self.temperature, 0.0, 1000.0)
        _check_float("top_p", self.top_p, 0.0, 1.0, open_below=True)
        _check_float("min_p", self.min_p, 0.0, 1.0)
        _check_float("repetition_penalty", self.repetition_penalty, 0.001, 1000.0)
        _check_float("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _check_float("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise InvalidParameter("min_tokens", self.min_tokens, f"it exceeds max_tokens = {self.max_tokens}")
        if any(not isinstance(text, str) or not text for text in self.stop):
            raise InvalidParameter("stop", self.stop, "every stop must be a text that is not empty")
        for value in self.logit_bias.values():
            _check_float("logit_bias", value, -_LARGEST_BIAS, _LARGEST_BIAS)
        if self.structured is not None and not isinstance(self.structured, Structured):
            raise InvalidParameter("structured", self.structured, "it must be a Structured")
        if self.speculation is not None and not isinstance(self.speculation, Speculation):
            raise InvalidParameter("speculation", self.speculation, "it must be a Speculation")
        if self.allowed_token_ids is not None and not self.allowed_token_ids:
            raise InvalidParameter("allowed_token_ids", (), "leave it out, or allow at least one token")

    def check_token_ids(self, vocab_size: int) -> None:
        """Refuse token ids that the model does not have."""
        named: tuple[tuple[str, Iterable[int]], ...] = (
            ("logit_bias", self.logit_bias),
            ("allowed_token_ids", self.allowed_token_ids or ()),
            ("stop_token_ids", self.stop_token_ids),
        )
        for name, token_ids in named:
            for token_id in token_ids:
                _check_int(name, token_id, 0, vocab_size - 1)
        for name in ("logprobs", "prompt_logprobs"):
            if getattr(self, name) is not None:
                _check_int(name, getattr(self, name), 0, vocab_size)


def _as_tuple(name: str, values: object) -> tuple[Any, ...]:
    if values is None:
        return ()
    if not isinstance(values, (list, tuple)):
        raise InvalidParameter(name, values, "it must be a list")
    return tuple(values)


def _as_bias(values: object) -> dict[int, float]:
    if values is None:
        return {}
    bad = InvalidParameter("logit_bias", "...", "it must map token ids to numbers")
    if not isinstance(values, Mapping):
        raise bad
    bias = {}
    for token, value in values.items():
        # JSON knows only text as keys.
        token_id = int(token) if isinstance(token, str) and _is_token_id(token) else token
        if not isinstance(token_id, int):
            raise bad
        bias[token_id] = value
    return bias


def _is_token_id(text: str) -> bool:
    # Python refuses to read thousands of digits, and no vocabulary needs more than a few.
    return text.isascii() and text.isdecimal() and len(text) <= _LONGEST_TOKEN_ID


def _check_int(name: str, value: object, least: int, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise InvalidParameter(name, value, f"it must be a whole number of at least {least} and at most {most}")


def _check_float(name: str, value: object, least: float, most: float, *, open_below: bool = False) -> None:
    bound = "above" if open_below else "at least"
    # Not-a-number fails every comparison.
    fits = isinstance(value, (int, float)) and not isinstance(value, bool) and least <= value <= most
    if not fits or (open_below and value == least):
        raise InvalidParameter(name, value, f"it must be a number {bound} {least:g} and at most {most:g}")


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
    num_guesses: int = 0
    """Tokens that were guessed in this step, and checked."""
    num_stood: int = 0
    """Those of them that stood, even past the sequence's end."""
