"""How tokens are guessed, as a user says it: a JSON object whose keys are those of a dataclass here."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from math import inf
from typing import Any, Literal, get_args

from archerfish.errors import ConfigError
from archerfish.request import MOST_GUESSES, Verification

Method = Literal["auto", "off", "reference", "lookahead", "draft_model", "eagle", "medusa"]
DraftFormat = Literal["none", "int8", "w8a8", "int4"]
NETWORKS = ("draft_model", "eagle", "medusa")
"""Methods that have weights of their own."""
WITHOUT_GUESSES = ("off", "auto")
"""What a request may ask of an engine that guesses nothing."""
WITHOUT_WEIGHTS = ("reference", "lookahead")
"""Methods that every engine has which guesses."""
TYPICAL_EPSILON = 0.09
"""As published, and so is delta: its square root."""
TYPICAL_DELTA = 0.3
_FLAG = "--speculative-config"
_MOST_BRANCHES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculationConfig:
    method: Method = "auto"
    """Who guesses; auto takes what pays, off guesses nothing."""
    model: str | None = None
    """Where the weights of whoever guesses are, named like a model; the package's own models bring theirs."""
    quantization: DraftFormat = "none"
    """Format of those weights while it runs. Lossy for guesses, never for answers."""
    num_speculative_tokens: int | None = None
    """Guesses that are checked wherever there are so many; by default as many as pay."""
    branches: int = 1
    """Tokens that are guessed side by side at each place."""
    shared: bool = False
    """With reference or auto: copy from what other requests of the same tenant were answered, too."""
    verification: Verification = "coupled"
    """Which guesses stand: coupled those that would have been drawn anyway, token for token; rejection as many as leave
    the distribution of answers as it is; typical those that are likely enough, which changes answers: it is lossy."""
    typical_epsilon: float = TYPICAL_EPSILON
    """With typical: how likely a guess must be at most to stand."""
    typical_delta: float = TYPICAL_DELTA
    """With typical: how likely it must be where the model is unsure, as a share of exp(-entropy)."""

    @classmethod
    def read(cls, given: Mapping[str, Any]) -> "SpeculationConfig":
        """Or a ConfigError that names the key."""
        names = [one.name for one in fields(cls)]
        for key in given:
            if key not in names:
                raise ConfigError(f"{_FLAG} has no key {key!r}; it knows {', '.join(names)}")
        config = cls(**given)
        config._check_each()
        config._check_together()
        return config

    def _check_each(self) -> None:
        _check_choice("method", self.method, get_args(Method))
        _check_choice("quantization", self.quantization, get_args(DraftFormat))
        _check_choice("verification", self.verification, get_args(Verification))
        if self.num_speculative_tokens is not None:
            _check_count("num_speculative_tokens", self.num_speculative_tokens, MOST_GUESSES)
        _check_count("branches", self.branches, _MOST_BRANCHES)
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
        """What is given must have a meaning for the method: nothing is accepted and ignored."""
        guesses, is_named = self.method != "off", self.method not in ("auto", "off")
        has_weights = self.method in ("auto", *NETWORKS)
        for key, is_given, has_meaning, needed in (
            ("num_speculative_tokens", self.num_speculative_tokens is not None, is_named, "a method that guesses"),
            ("model", self.model is not None, has_weights, f"auto or {' or '.join(NETWORKS)}"),
            ("quantization", self.quantization != "none", has_weights, "a method with weights"),
            ("branches", self.branches > 1, is_named and self.method != "lookahead", "a method that makes one line"),
            ("shared", self.shared, self.method in ("auto", "reference"), "reference or auto"),
            (f"verification {self.verification}", self.verification != "coupled", guesses, "a method that guesses"),
        ):
            if is_given and not has_meaning:
                raise ConfigError(f"{_FLAG} {key} needs {needed}, not {self.method}")
        if (self.num_speculative_tokens or 1) * self.branches > MOST_GUESSES:
            raise ConfigError(f"{_FLAG} num_speculative_tokens times branches is more than {MOST_GUESSES}")


def _check_choice(key: str, value: object, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ConfigError(f"{_FLAG} {key} {value!r} is none of {', '.join(known)}")


def _check_count(key: str, value: object, most: int) -> None:
    if type(value) is not int or not 1 <= value <= most:
        raise ConfigError(f"{_FLAG} {key} {value!r} must be a number from 1 to {most}")
