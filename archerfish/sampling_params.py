"""Sampling parameters: everything that a client can choose about an answer, checked."""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from functools import wraps
from typing import Any, Literal, NamedTuple, get_args

from archerfish.checks import as_tuple, check_bool, check_float, check_int
from archerfish.errors import InvalidParameter
from archerfish.structured_outputs import GuidedDecodingParams as GuidedDecodingParams
from archerfish.structured_outputs import Structured as Structured
from archerfish.structured_outputs import StructuredOutputsParams as StructuredOutputsParams

GREEDY_BELOW = 1e-5
"""A temperature under this is greedy: dividing by it would only overflow."""

Verification = Literal["coupled", "rejection", "typical"]
"""Which draft tokens are accepted. Coupled preserves the tokens, rejection their distribution; typical is lossy."""
MAX_DRAFT_TOKENS = 63
"""For one sequence in one step."""

_LARGEST_SEED = 2**64 - 1
_LARGEST_COUNT = 2**31 - 1
_LONGEST_TOKEN_ID = 10  # Digits.
_MOST_ANSWERS = 1024  # Each is a sequence from the start; a billion of them would be one small request.
_LARGEST_BIAS = 10_000.0  # Decides any draw, and leaves float32 logits far from overflow.
_LARGEST_LENGTH_PENALTY = 100.0
_MOST_BAD_WORDS = 1000
_LONGEST_BAD_WORD = 1000  # Characters, or tokens.
_MAX_STOPS = 256
_MAX_STOP_LENGTH = 1000  # Characters.

METHOD_ALIASES = {"reference": "suffix", "ngram": "suffix"}
"""Other names of methods that propose draft tokens: in the literature, and in vLLM."""


class _Foreign(NamedTuple):
    """A parameter of another engine."""

    instead: str
    """What to use, as the end of a sentence."""
    harmless: tuple[object, ...] = ()
    """Values that request nothing; None is always one of them."""


_FOREIGN = {
    "logits_processors": _Foreign(
        "functions do not travel to the engine process; use logit_bias, allowed_token_ids, bad_words or "
        "structured_outputs",
        ([],),
    ),
    "use_beam_search": _Foreign("call LLM.beam_search with BeamSearchParams", (False,)),
    "length_penalty": _Foreign("it belongs to BeamSearchParams, for LLM.beam_search", (1.0,)),
    "early_stopping": _Foreign("LLM.beam_search looks at all beams up to max_tokens; leave it out", (False,)),
    "extra_args": _Foreign("there are no plugins that would read them; leave it out", ({},)),
    "flat_logprobs": _Foreign("log-probabilities are dictionaries by token id; leave it out", (False,)),
    "logprob_token_ids": _Foreign("use logprobs, or allowed_token_ids where an answer is one of a few tokens", ([],)),
    "thinking_token_budget": _Foreign("chats with archerfish serve have it; here use max_tokens"),
    "repetition_detection": _Foreign("use repetition_penalty or frequency_penalty"),
    "stream_interval": _Foreign("use output_kind; every step that adds text gives an output", (1,)),
    "skip_reading_prefix_cache": _Foreign("give the request a cache_salt of its own", (False,)),
    "guided_json": _Foreign("use structured_outputs=StructuredOutputsParams(json=...)"),
    "guided_regex": _Foreign("use structured_outputs=StructuredOutputsParams(regex=...)"),
    "guided_choice": _Foreign("use structured_outputs=StructuredOutputsParams(choice=...)"),
    "guided_grammar": _Foreign("use structured_outputs=StructuredOutputsParams(grammar=...)"),
}
"""What other engines take here, and what takes its place."""


class RequestOutputKind(Enum):
    """What each output of an answer that is still being written holds, as in vLLM."""

    CUMULATIVE = 0
    """All that there is so far."""
    DELTA = 1
    """What was added since the last output."""
    FINAL_ONLY = 2
    """There is one output, when the answer is complete."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculation:
    """How draft tokens are proposed and verified for a request. What is None is as the service has it."""

    method: str | None = None
    """Method that proposes, of those that the engine has; off proposes nothing."""
    num_speculative_tokens: int | None = None
    """Maximum draft length per sequence and step."""
    verification: Verification | None = None
    """Acceptance of draft tokens: coupled preserves the tokens, rejection their distribution; typical is lossy."""

    def __post_init__(self) -> None:
        if self.method is not None and (not isinstance(self.method, str) or not self.method):
            raise InvalidParameter("speculation.method", self.method, "it must be the name of a method")
        object.__setattr__(self, "method", METHOD_ALIASES.get(self.method or "", self.method))
        if self.num_speculative_tokens is not None:
            check_int("speculation.num_speculative_tokens", self.num_speculative_tokens, 1, MAX_DRAFT_TOKENS)
        if self.verification is not None and self.verification not in get_args(Verification):
            known = ", ".join(get_args(Verification))
            raise InvalidParameter("speculation.verification", self.verification, f"it must be one of {known}")
        given = [name for name in ("num_speculative_tokens", "verification") if getattr(self, name) is not None]
        if self.method == "off" and given:
            raise InvalidParameter(f"speculation.{given[0]}", getattr(self, given[0]), "with method = off leave it out")

    @property
    def max_draft_tokens(self) -> int | None:
        """Maximum draft length; None leaves it to the service."""
        return 0 if self.method == "off" else self.num_speculative_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How tokens are chosen and when to stop. Checked when made, and when one is changed: always valid.

    The engine takes a copy: later changes concern later requests.
    """

    n: int = 1
    """Number of answers to write for the prompt."""
    best_of: int | None = None
    """Number of answers to write, of which the n with the highest mean log-probability of a token are returned."""
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
    bad_words: tuple[str, ...] = ()
    """Words that must not be written: the token that would complete one, as the tokenizer splits it, is forbidden."""
    bad_words_token_ids: tuple[tuple[int, ...], ...] = ()
    """The same as sequences of token ids, whose last token must not follow the others."""
    stop: tuple[str, ...] = ()
    """Texts that end the answer."""
    stop_token_ids: tuple[int, ...] = ()
    """Token ids that end the answer, besides the model's own."""
    ignore_eos: bool = False
    """Write on past the model's end token."""
    include_stop_str_in_output: bool = False
    """Keep the stop text at the end of the answer."""
    skip_special_tokens: bool = True
    """Leave special tokens out of the text."""
    spaces_between_special_tokens: bool = True
    """Between special tokens that are shown, write the space that some tokenizers put between any two tokens."""
    detokenize: bool = True
    """Make text of the answer's tokens; without it there are only token ids."""
    truncate_prompt_tokens: int | None = None
    """Keep only this many tokens at the end of the prompt; -1 keeps as many as leave max_tokens for the answer."""
    seed: int | None = None
    """Same seed, same tokens, in whatever batch. Without one, a seed is drawn."""
    logprobs: int | None = None
    """Log-probabilities of the chosen token and of this many likeliest ones."""
    prompt_logprobs: int | None = None
    """The same for the tokens of the prompt."""
    prompt_embedding: bool = False
    """Give the mean of the last layer's states over the prompt, too: what embeddings are made of."""
    prompt_states: bool = False
    """Give the last layer's state of each token of the prompt, too."""
    structured: Structured | None = None
    """What the answer must look like: a JSON schema, a regular expression, one of several texts, a grammar."""
    structured_outputs: StructuredOutputsParams | None = None
    """The grammar under vLLM's name. It becomes `structured`."""
    guided_decoding: GuidedDecodingParams | None = None
    """The grammar under vLLM's older name. It becomes `structured`."""
    speculation: Speculation | None = None
    """Speculative decoding of this request, where it differs from the service's."""
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE
    """What each output of AsyncLLM.generate holds: all so far, what was added, or the complete answer, once."""

    def __new__(cls, *_: Any, **given: Any) -> "SamplingParams":
        for name, value in given.items():
            if name not in cls.__dataclass_fields__ and not _is_harmless(name, value):
                raise InvalidParameter(name, value, _why_unknown(name))
        return object.__new__(cls)

    def __post_init__(self) -> None:
        self._normalize()
        self._check()

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "SamplingParams":
        """As a client sends them. A name that is not a parameter is refused."""
        return cls(**values)

    @classmethod
    def from_optional(cls, **given: Any) -> "SamplingParams":
        """Make parameters where None stands for the default, as in vLLM; for max_tokens it is still no limit."""
        return cls(**{name: value for name, value in given.items() if value is not None or name == "max_tokens"})

    def clone(self) -> "SamplingParams":
        """Return a copy that shares nothing that could be changed."""
        return replace(self, logit_bias=dict(self.logit_bias))

    @property
    def is_greedy(self) -> bool:
        return self.temperature < GREEDY_BELOW

    def _normalize(self) -> None:
        """Accept what people write (one stop string, lists) and keep one form."""
        set_field = object.__setattr__
        stop: Any = self.stop
        set_field(self, "stop", (stop,) if isinstance(stop, str) else as_tuple("stop", stop))
        set_field(self, "stop_token_ids", _without_repeats(as_tuple("stop_token_ids", self.stop_token_ids)))
        if self.allowed_token_ids is not None:
            allowed = as_tuple("allowed_token_ids", self.allowed_token_ids)
            set_field(self, "allowed_token_ids", _without_repeats(allowed))
        if self.top_k == -1:
            set_field(self, "top_k", 0)
        set_field(self, "logit_bias", _as_bias(self.logit_bias))
        set_field(self, "bad_words", as_tuple("bad_words", self.bad_words))
        sequences = as_tuple("bad_words_token_ids", self.bad_words_token_ids)
        set_field(self, "bad_words_token_ids", tuple(as_tuple("bad_words_token_ids", one) for one in sequences))
        for name, kind in (("structured_outputs", StructuredOutputsParams), ("guided_decoding", GuidedDecodingParams)):
            if (given := getattr(self, name)) is not None:
                if self.structured is not None:
                    raise InvalidParameter(name, "...", "the response format is given twice; leave all but one out")
                set_field(self, "structured", kind.read(name, given).structured)
                set_field(self, name, None)

    def _check(self) -> None:
        for name in _SWITCHES:
            check_bool(name, getattr(self, name))
        check_int("n", self.n, 1, _MOST_ANSWERS)
        for name in ("min_tokens", "top_k"):
            check_int(name, getattr(self, name), 0, _LARGEST_COUNT)
        for name, least in (("max_tokens", 1), ("logprobs", 0), ("prompt_logprobs", 0)):
            if least == 0 and getattr(self, name) == -1:
                allowed = "vLLM reads -1 as all tokens; give their number here, up to the size of the vocabulary"
                raise InvalidParameter(name, -1, allowed)
            if getattr(self, name) is not None:
                check_int(name, getattr(self, name), least, _LARGEST_COUNT)
        if self.seed == -1:
            raise InvalidParameter("seed", -1, "vLLM reads -1 as no seed; leave it out, or give None")
        if self.seed is not None:
            check_int("seed", self.seed, 0, _LARGEST_SEED)
        check_float("temperature", self.temperature, 0.0, 1000.0)
        check_float("top_p", self.top_p, 0.0, 1.0, open_below=True)
        check_float("min_p", self.min_p, 0.0, 1.0)
        check_float("repetition_penalty", self.repetition_penalty, 0.001, 1000.0)
        check_float("presence_penalty", self.presence_penalty, -2.0, 2.0)
        check_float("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise InvalidParameter("min_tokens", self.min_tokens, f"it exceeds max_tokens = {self.max_tokens}")
        self._check_answers()
        self._check_words()
        if not _are_biases(self.logit_bias.values()):
            for value in self.logit_bias.values():
                check_float("logit_bias", value, -_LARGEST_BIAS, _LARGEST_BIAS)
        if self.structured is not None and not isinstance(self.structured, Structured):
            raise InvalidParameter("structured", self.structured, "it must be a Structured")
        if self.speculation is not None and not isinstance(self.speculation, Speculation):
            raise InvalidParameter("speculation", self.speculation, "it must be a Speculation")
        if self.allowed_token_ids is not None and not self.allowed_token_ids:
            raise InvalidParameter("allowed_token_ids", (), "leave it out, or allow at least one token")
        if not isinstance(self.output_kind, RequestOutputKind):
            raise InvalidParameter("output_kind", self.output_kind, "it must be a RequestOutputKind")

    def _check_answers(self) -> None:
        if self.best_of is not None:
            check_int("best_of", self.best_of, 1, _MOST_ANSWERS)
            if self.best_of < self.n:
                raise InvalidParameter("best_of", self.best_of, f"it must be at least n = {self.n}")
        if self.truncate_prompt_tokens is not None and self.truncate_prompt_tokens != -1:
            check_int("truncate_prompt_tokens", self.truncate_prompt_tokens, 1, _LARGEST_COUNT)

    def _check_words(self) -> None:
        if any(not isinstance(text, str) or not text for text in self.stop):
            raise InvalidParameter("stop", self.stop, "every stop must be a non-empty string")
        if len(self.stop) > _MAX_STOPS or any(len(text) > _MAX_STOP_LENGTH for text in self.stop):
            allowed = f"at most {_MAX_STOPS} strings of at most {_MAX_STOP_LENGTH:,} characters each"
            raise InvalidParameter("stop", "...", allowed)
        if self.stop and not self.detokenize:
            raise InvalidParameter(
                "stop", self.stop, "stop strings need text; with detokenize = False use stop_token_ids"
            )
        if any(not isinstance(word, str) or not word.strip() for word in self.bad_words):
            raise InvalidParameter("bad_words", self.bad_words, "every word must be a non-empty string")
        if any(not sequence for sequence in self.bad_words_token_ids):
            allowed = "every sequence must have a token"
            raise InvalidParameter("bad_words_token_ids", self.bad_words_token_ids, allowed)
        for name in ("bad_words", "bad_words_token_ids"):
            words = getattr(self, name)
            if len(words) > _MOST_BAD_WORDS or any(len(word) > _LONGEST_BAD_WORD for word in words):
                allowed = f"at most {_MOST_BAD_WORDS} of them, none longer than {_LONGEST_BAD_WORD}"
                raise InvalidParameter(name, "...", allowed)

    def check_token_ids(self, vocab_size: int) -> None:
        """Refuse token ids that the model does not have."""
        named: tuple[tuple[str, Collection[int]], ...] = (
            ("logit_bias", self.logit_bias),
            ("allowed_token_ids", self.allowed_token_ids or ()),
            ("stop_token_ids", self.stop_token_ids),
            ("bad_words_token_ids", [token_id for sequence in self.bad_words_token_ids for token_id in sequence]),
        )
        for name, token_ids in named:
            if not _are_token_ids(token_ids, vocab_size):
                for token_id in token_ids:
                    check_int(name, token_id, 0, vocab_size - 1)
        for name in ("logprobs", "prompt_logprobs"):
            if getattr(self, name) is not None:
                check_int(name, getattr(self, name), 0, vocab_size)


_SWITCHES = (
    *("ignore_eos", "include_stop_str_in_output", "skip_special_tokens", "spaces_between_special_tokens"),
    *("detokenize", "prompt_embedding", "prompt_states"),
)


def _set_parameter(self: SamplingParams, name: str, value: Any) -> None:
    """Change one parameter. All are checked together first; an error changes nothing."""
    if name in ("structured_outputs", "guided_decoding"):
        changed = replace(self, structured=None, **{name: value})
    else:
        changed = replace(self, **{name: value})
    for one in fields(self):
        object.__setattr__(self, one.name, getattr(changed, one.name))


# A frozen dataclass sets its fields past this. What is assigned later is checked like what is given at the start.
SamplingParams.__setattr__ = _set_parameter  # type: ignore[method-assign,assignment]


def _without_repeats(token_ids: tuple[Any, ...]) -> tuple[Any, ...]:
    """Each once: a step reads all of them for every row. What is no id is left to be refused."""
    return tuple(dict.fromkeys(token_ids)) if all(type(token) is int for token in token_ids) else token_ids


_set_fields = SamplingParams.__init__


@wraps(_set_fields)
def _init(self: SamplingParams, *positional: Any, **given: Any) -> None:
    """Leave out parameters of other engines: __new__ lets only values pass that request nothing."""
    _set_fields(self, *positional, **{name: value for name, value in given.items() if name not in _FOREIGN})


SamplingParams.__init__ = _init  # type: ignore[method-assign]


def _is_harmless(name: str, value: object) -> bool:
    return name in _FOREIGN and (value is None or value in _FOREIGN[name].harmless)


def _why_unknown(name: str) -> str:
    if name in _FOREIGN:
        return _FOREIGN[name].instead
    return f"there is no such parameter; known are {', '.join(sorted(one.name for one in fields(SamplingParams)))}"


def _are_biases(values: Collection[Any]) -> bool:
    """Whether all are plainly valid: thousands of values are checked at the speed of the interpreter's own loops."""
    if not set(map(type, values)) <= {int, float}:
        return False
    lowest, highest = min(values, default=0), max(values, default=0)
    # The sum finds values that are not a number, which min and max may miss.
    return lowest >= -_LARGEST_BIAS and highest <= _LARGEST_BIAS and math.isfinite(sum(values))


def _are_token_ids(values: Collection[Any], vocab_size: int) -> bool:
    """Whether all are plainly token ids of the model."""
    return set(map(type, values)) <= {int} and min(values, default=0) >= 0 and max(values, default=0) < vocab_size


def _as_bias(values: object) -> dict[int, float]:
    if values is None:
        return {}
    if type(values) is dict and set(map(type, values)) <= {int}:
        return values.copy()
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


@dataclass(frozen=True, slots=True)
class BeamSearchParams:
    """How LLM.beam_search goes: the names are vLLM's."""

    beam_width: int
    """Beams that survive each step, and answers that are returned."""
    max_tokens: int
    """Most tokens to write."""
    ignore_eos: bool = False
    """Write on past the model's end token."""
    temperature: float = 0.0
    """Beams are compared by the model's own probabilities: 0 (the default) or 1, which mean the same here."""
    length_penalty: float = 1.0
    """Answers are ordered by their log-probability over their number of tokens to the power of this."""
    include_stop_str_in_output: bool = False
    """There are no stop texts: always False."""

    def __post_init__(self) -> None:
        check_int("beam_width", self.beam_width, 1, _MOST_ANSWERS)
        check_int("max_tokens", self.max_tokens, 1, _LARGEST_COUNT)
        check_bool("ignore_eos", self.ignore_eos)
        check_float("length_penalty", self.length_penalty, -_LARGEST_LENGTH_PENALTY, _LARGEST_LENGTH_PENALTY)
        if isinstance(self.temperature, bool) or self.temperature not in (0, 1):
            allowed = "beams are compared by the model's own probabilities; leave it out"
            raise InvalidParameter("temperature", self.temperature, allowed)
        if self.include_stop_str_in_output is not False:
            allowed = "a beam search has no stop strings; leave it out"
            raise InvalidParameter("include_stop_str_in_output", self.include_stop_str_in_output, allowed)
