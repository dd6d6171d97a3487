"""How tokens are guessed, as a user says it: a JSON object whose keys are those of a dataclass here."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

from archerfish.errors import ConfigError

Method = Literal["auto", "off", "reference", "lookahead"]
_FLAG = "--speculative-config"
_MOST_GUESSES = 63


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculationConfig:
    method: Method = "auto"
    """Who guesses; auto takes what pays, off guesses nothing."""
    num_speculative_tokens: int | None = None
    """Guesses that are checked wherever there are so many; by default as many as pay."""

    @classmethod
    def read(cls, given: Mapping[str, Any]) -> "SpeculationConfig":
        """Or a ConfigError that names the key."""
        names = [one.name for one in fields(cls)]
        for key in given:
            if key not in names:
                raise ConfigError(f"{_FLAG} has no key {key!r}; it knows {', '.join(names)}")
        config = cls(**given)
        if config.method not in get_args(Method):
            raise ConfigError(f"{_FLAG} method {config.method!r} is none of {', '.join(get_args(Method))}")
        count = config.num_speculative_tokens
        if count is not None and (type(count) is not int or not 1 <= count <= _MOST_GUESSES):
            raise ConfigError(f"{_FLAG} num_speculative_tokens {count!r} must be a number from 1 to {_MOST_GUESSES}")
        if count is not None and config.method in ("auto", "off"):
            raise ConfigError(f"{_FLAG} num_speculative_tokens needs a method that guesses, not {config.method}")
        return config
