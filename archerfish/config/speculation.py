"""How tokens are guessed, as a user says it: a JSON object whose keys are those of a dataclass here."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from math import inf
from typing import Any, Literal, get_args

from archerfish.errors import ConfigError
from archerfish.request import MOST_GUESSES, Verification

Method = Literal["auto", "off", "reference", "lookahead"]
WITHOUT_GUESSES: tuple[str, ...] = ("off", "auto")
"""What a request may ask of an engine that guesses nothing."""
_NEED_NOTHING: tuple[str, ...] = ("reference", "lookahead")
"""Methods that guess without a network of their own."""
TYPICAL_EPSILON = 0.09
"""As published, and so is delta: its square root."""
TYPICAL_DELTA = 0.3
_FLAG = "--speculative-config"


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculationConfig:
    method: Method = "auto"
    """Who guesses; auto takes what pays, off guesses nothing."""
    num_speculative_tokens: int | None = None
    """Guesses that are checked wherever there are so many; by default as many as pay."""
    verification: Verification = "coupled"
    """Which guesses stand: coupled those that would have been drawn anyway, token for token; rejection as many as leave
    the distribution of answers as it is; typical those that are likely enough, which changes answers: it is lossy."""
    typical_epsilon: float = TYPICAL_EPSILON
    """With typical: how likely a guess must be at most to stand."""
    typical_delta: float = TYPICAL_DELTA
    """With typical: how likely it must be where the model is unsure, as a share of exp(-entropy)."""

    @property
    def methods(self) -> tuple[str, ...]:
        """What a request may ask of an engine that guesses."""
        return tuple(dict.fromkeys((*WITHOUT_GUESSES, self.method, *_NEED_NOTHING)))

    @classmethod
    def read(cls, given: Mapping[str, Any]) -> "SpeculationConfig":
        """Or a ConfigError that names the key."""
        names = [one.name for one in fields(cls)]
        for key in given:
            if key not in names:
                raise ConfigError(f"{_FLAG} has no key {key!r}; it knows {', '.join(names)}")
        config = cls(**given)
        config._check_guesses()
        config._check_rule()
        return config

    def _check_guesses(self) -> None:
        _check_choice("method", self.method, get_args(Method))
        count = self.num_speculative_tokens
        if count is not None and (type(count) is not int or not 1 <= count <= MOST_GUESSES):
            raise ConfigError(f"{_FLAG} num_speculative_tokens {count!r} must be a number from 1 to {MOST_GUESSES}")
        if count is not None and self.method in ("auto", "off"):
            raise ConfigError(f"{_FLAG} num_speculative_tokens needs a method that guesses, not {self.method}")

    def _check_rule(self) -> None:
        _check_choice("verification", self.verification, get_args(Verification))
        if self.verification != "coupled" and self.method == "off":
            raise ConfigError(f"{_FLAG} verification {self.verification} needs a method that guesses, not off")
        for name, below in (("typical_epsilon", 1.0), ("typical_delta", inf)):
            value = getattr(self, name)
            # Not-a-number fails every comparison.
            if type(value) not in (int, float) or not 0.0 < value < below:
                end = "" if below == inf else f" and below {below:g}"
                raise ConfigError(f"{_FLAG} {name} {value!r} must be a number above 0{end}")


def _check_choice(name: str, value: object, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ConfigError(f"{_FLAG} {name} {value!r} is none of {', '.join(known)}")
