"""How tokens are guessed, as a user says it: a JSON object whose keys are those of a dataclass here."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

from archerfish.errors import ConfigError

Method = Literal["auto", "off", "reference", "lookahead", "draft_model", "eagle", "medusa"]
DraftFormat = Literal["none", "int8", "w8a8", "int4"]
NETWORKS = ("draft_model", "eagle", "medusa")
"""Methods that have weights of their own."""
_FLAG = "--speculative-config"
_MOST_GUESSES = 63
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

    @classmethod
    def read(cls, given: Mapping[str, Any]) -> "SpeculationConfig":
        """Or a ConfigError that names the key."""
        names = [one.name for one in fields(cls)]
        for key in given:
            if key not in names:
                raise ConfigError(f"{_FLAG} has no key {key!r}; it knows {', '.join(names)}")
        config = cls(**given)
        _check_choice("method", config.method, get_args(Method))
        _check_choice("quantization", config.quantization, get_args(DraftFormat))
        if config.num_speculative_tokens is not None:
            _check_number("num_speculative_tokens", config.num_speculative_tokens, _MOST_GUESSES)
        _check_number("branches", config.branches, _MOST_BRANCHES)
        if config.model is not None and not isinstance(config.model, str):
            raise ConfigError(f"{_FLAG} model {config.model!r} must be the name of a model or of a directory")
        if not isinstance(config.shared, bool):
            raise ConfigError(f"{_FLAG} shared {config.shared!r} must be true or false")
        config._check_together()
        return config

    def _check_together(self) -> None:
        """What is given must have a meaning for the method: nothing is accepted and ignored."""
        guesses = self.method not in ("auto", "off")
        for key, is_given, has_meaning, needed in (
            ("num_speculative_tokens", self.num_speculative_tokens is not None, guesses, "a method that guesses"),
            ("model", self.model is not None, self.method in ("auto", *NETWORKS), f"auto or {' or '.join(NETWORKS)}"),
            ("quantization", self.quantization != "none", self.method in ("auto", *NETWORKS), "a method with weights"),
            ("branches", self.branches > 1, guesses and self.method != "lookahead", "a method that makes one line"),
            ("shared", self.shared, self.method in ("auto", "reference"), "reference or auto"),
        ):
            if is_given and not has_meaning:
                raise ConfigError(f"{_FLAG} {key} needs {needed}, not {self.method}")
        if (self.num_speculative_tokens or 1) * self.branches > _MOST_GUESSES:
            raise ConfigError(f"{_FLAG} num_speculative_tokens times branches is more than {_MOST_GUESSES}")


def _check_choice(key: str, value: object, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ConfigError(f"{_FLAG} {key} {value!r} is none of {', '.join(known)}")


def _check_number(key: str, value: object, most: int) -> None:
    if type(value) is not int or not 1 <= value <= most:
        raise ConfigError(f"{_FLAG} {key} {value!r} must be a number from 1 to {most}")
