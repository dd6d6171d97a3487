"""Settings of speculation: the keys of --speculative-config."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from math import inf
from typing import Any, Literal, get_args

from archerfish.errors import ConfigError
from archerfish.request import MAX_DRAFT_TOKENS, METHOD_ALIASES, Verification

Method = Literal["auto", "off", "suffix", "lookahead", "draft_model", "eagle", "medusa"]
DraftFormat = Literal["none", "int8", "w8a8", "int4"]
DRAFTER_METHODS = ("draft_model", "eagle", "medusa")
"""Methods with weights of their own."""
NON_SPECULATIVE_METHODS = ("off", "auto")
"""Methods that a request may choose on an engine without speculation."""
MODEL_FREE_METHODS = ("suffix", "lookahead")
"""Methods without weights, which every engine with speculation has."""
TYPICAL_EPSILON = 0.09
"""As published, like delta, its square root."""
TYPICAL_DELTA = 0.3
_FLAG = "--speculative-config"
_MOST_BRANCHES = 8
_LONGEST_LOOKUP = 1024
_ALIASES = {**METHOD_ALIASES, "eagle3": "eagle"}

_NOT_METHODS = {
    "mtp": "layers for it inside a checkpoint are not read; use draft_model, eagle or medusa",
    "deepseek_mtp": "layers for it inside a checkpoint are not read; use draft_model, eagle or medusa",
    "mlp_speculator": "use medusa or eagle, which archerfish train-draft makes",
    "ngram_gpu": "use ngram, or suffix, which finds matches of any length",
}
"""Methods of vLLM that are not supported, and what to use."""

_FOREIGN_KEYS: Mapping[str, tuple[tuple[object, ...], str]] = {
    "draft_tensor_parallel_size": ((1,), "the draft model runs on the model's device; leave it out"),
    "tensor_parallel_size": ((1,), "the draft model runs on the model's device; leave it out"),
    "enforce_eager": ((False,), "draft and model run alike; use --kernels reference"),
    "disable_padded_drafter_batch": ((True, False), "drafts are never padded; leave it out"),
    "parallel_drafting": ((False,), "draft tokens are proposed in turn, or as siblings with branches; leave it out"),
    "use_heterogeneous_vocab": ((False,), "a draft model must have the vocabulary of the model"),
    "use_local_argmax_reduction": ((True, False), "there is one device; leave it out"),
    "rejection_sample_method": (("standard",), 'use verification: "coupled", "rejection" or "typical"'),
    "draft_sample_method": (("greedy",), 'use verification: "rejection" takes draft tokens by their probability'),
    "acceptance_method": (("rejection_sampler",), 'use verification: "typical" for typical acceptance'),
    "posterior_threshold": ((), "use typical_epsilon"),
    "posterior_alpha": ((), "use typical_delta"),
    "max_model_len": ((), "a draft model serves sequences up to its own longest context; leave it out"),
    "revision": ((), "give model a directory that holds this revision"),
    "disable_by_batch_size": ((), "nothing is drafted where it does not pay; leave it out"),
    "speculative_disable_by_batch_size": ((), "nothing is drafted where it does not pay; leave it out"),
    "speculative_token_tree": ((), "use branches"),
    "suffix_decoding_max_tree_depth": ((24,), "matches may have any length; use prompt_lookup_max to bound it"),
    "suffix_decoding_max_cached_requests": ((), "use shared: true or false"),
    "suffix_decoding_max_spec_factor": ((1.0,), "how far a match is followed is learned; leave it out"),
    "suffix_decoding_min_token_prob": ((0.1,), "how far a match is followed is learned; leave it out"),
}
"""Keys of vLLM's speculative_config that are not ours: values that change nothing, and what to use instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculationConfig:
    """How draft tokens are proposed and verified, unless a request chooses for itself."""

    method: Method = "auto"
    """How draft tokens are proposed: auto takes whatever pays, off proposes none."""
    model: str | None = None
    """The drafter, named like a model; the package's own models bring theirs."""
    quantization: DraftFormat = "none"
    """Weight format of the drafter while it runs. Lossy for draft tokens, never for answers."""
    num_speculative_tokens: int | None = None
    """Draft length; by default a cost model chooses one for every step."""
    branches: int = 1
    """Tokens that are drafted at each position, as siblings of a tree."""
    shared: bool = False
    """With suffix or auto: copy from answers to other requests of the same tenant, too."""
    prompt_lookup_max: int | None = None
    """With ngram or suffix: maximum length of a match, in tokens; by default unlimited."""
    prompt_lookup_min: int | None = None
    """With ngram or suffix: minimum length of a match, in tokens; by default 1."""
    verification: Verification = "coupled"
    """Which draft tokens are accepted: with coupled those that equal the sampled ones, token for token; with rejection
    as many as keep the distribution of answers; with typical those that are likely enough, which is lossy."""
    typical_epsilon: float = TYPICAL_EPSILON
    """With typical: cap of the probability that a draft token must exceed."""
    typical_delta: float = TYPICAL_DELTA
    """With typical: the probability that it must exceed where the model is uncertain, as a share of exp(-entropy)."""

    @classmethod
    def read(cls, given: Mapping[str, Any]) -> "SpeculationConfig":
        """Return the settings of a JSON object, or raise a ConfigError that names the key."""
        names = [field.name for field in fields(cls)]
        # A null is how vLLM's users leave a key out.
        own = {key: value for key, value in given.items() if value is not None}
        for key, value in list(own.items()):
            if key not in names:
                _check_foreign(key, value, names)
                del own[key]
        if isinstance(method := own.get("method"), str):
            if method in _NOT_METHODS:
                raise ConfigError(f"{_FLAG} method {method!r}: {_NOT_METHODS[method]}")
            own["method"] = _ALIASES.get(method, method)
        config = cls(**own)
        config._check_each()
        config._check_together()
        return config

    def _check_each(self) -> None:
        _check_choice("method", self.method, get_args(Method))
        _check_choice("quantization", self.quantization, get_args(DraftFormat))
        _check_choice("verification", self.verification, get_args(Verification))
        if self.num_speculative_tokens is not None:
            _check_count("num_speculative_tokens", self.num_speculative_tokens, MAX_DRAFT_TOKENS)
        _check_count("branches", self.branches, _MOST_BRANCHES)
        for key in ("prompt_lookup_max", "prompt_lookup_min"):
            if getattr(self, key) is not None:
                _check_count(key, getattr(self, key), _LONGEST_LOOKUP)
        if self.model is not None and not isinstance(self.model, str):
            raise ConfigError(f"{_FLAG} model {self.model!r} must be the name of a model or of a directory")
        if not isinstance(self.shared, bool):
            raise ConfigError(f"{_FLAG} shared {self.shared!r} must be true or false")
        for name, below in (("typical_epsilon", 1.0), ("typical_delta", inf)):
            value = getattr(self, name)
            # Not-a-number fails every comparison.
            if type(value) not in (int, float) or not 0.0 < value < below:
                end = "" if below == inf else f" and below {below:g}"
                raise ConfigError(f"{_FLAG} {name} {value!r} must be a number above 0{end}")

    def _check_together(self) -> None:
        """Refuse settings that mean nothing for the method: nothing is accepted and ignored."""
        speculates, is_named = self.method != "off", self.method not in ("auto", "off")
        has_weights = self.method in ("auto", *DRAFTER_METHODS)
        # With a model and no method, the method is what the model's files are for.
        has_method = is_named or (self.method == "auto" and self.model is not None)
        looks_up = self.method == "suffix"
        for key, is_given, has_meaning, needed in (
            (
                "num_speculative_tokens",
                self.num_speculative_tokens is not None,
                has_method,
                "a named method",
            ),
            ("prompt_lookup_max", self.prompt_lookup_max is not None, looks_up, "ngram or suffix"),
            ("prompt_lookup_min", self.prompt_lookup_min is not None, looks_up, "ngram or suffix"),
            ("model", self.model is not None, has_weights, f"auto or {' or '.join(DRAFTER_METHODS)}"),
            ("quantization", self.quantization != "none", has_weights, "a method with weights"),
            (
                "branches",
                self.branches > 1,
                is_named and self.method != "lookahead",
                "a named method other than lookahead",
            ),
            ("shared", self.shared, self.method in ("auto", "suffix"), "suffix or auto"),
            (
                f"verification {self.verification}",
                self.verification != "coupled",
                speculates,
                "a method that drafts",
            ),
        ):
            if is_given and not has_meaning:
                raise ConfigError(f"{_FLAG} {key} needs {needed}, not {self.method}")
        if (self.prompt_lookup_min or 1) > (self.prompt_lookup_max or _LONGEST_LOOKUP):
            raise ConfigError(f"{_FLAG} prompt_lookup_min {self.prompt_lookup_min} is more than prompt_lookup_max")
        if (self.num_speculative_tokens or 1) * self.branches > MAX_DRAFT_TOKENS:
            raise ConfigError(f"{_FLAG} num_speculative_tokens times branches is more than {MAX_DRAFT_TOKENS}")


def _check_foreign(key: str, value: object, names: list[str]) -> None:
    """Raise a ConfigError unless this is a key of vLLM's with a value that changes nothing."""
    if key not in _FOREIGN_KEYS:
        raise ConfigError(f"{_FLAG} has no key {key!r}; it knows {', '.join(names)}")
    harmless, instead = _FOREIGN_KEYS[key]
    if not any(type(value) is type(other) and value == other for other in harmless):
        raise ConfigError(f"{_FLAG} {key} {value!r}: {instead}")


def _check_choice(key: str, value: object, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ConfigError(f"{_FLAG} {key} {value!r} is none of {', '.join(known)}")


def _check_count(key: str, value: object, most: int) -> None:
    if type(value) is not int or not 1 <= value <= most:
        raise ConfigError(f"{_FLAG} {key} {value!r} must be a number from 1 to {most}")
