"""Gives a command the sampling parameters as options, on top of the model's recommended values."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from typing import Any

from archerfish.cli.field_options import CommandFunction, field_options, take_given
from archerfish.config.load import read_flags
from archerfish.config.settings import flag_name
from archerfish.errors import ConfigError, InvalidParameter
from archerfish.request import SamplingParams, Speculation

_SECTION = "Sampling (by default what the model's generation_config.json names, else the values shown)"
_SPECULATION = "Speculative decoding, for these requests alone (by default as --speculative-config says)"
_NOT_FLAGS = (
    *("structured", "structured_outputs", "guided_decoding", "speculation", "prompt_embedding", "prompt_states"),
    *("bad_words_token_ids", "detokenize", "output_kind"),
)
"""Parameters with flags of their own (here and in response_format_options), or too complex for a command line."""
_SPECULATION_PREFIX = "speculation_"
_PREFIX = "sampling_"
_MAX_TOKENS = 128


def sampling_options(*, left_out: tuple[str, ...] = ()) -> Callable[[CommandFunction], CommandFunction]:
    """Call the command with `sampling`: the parameters that the user gave, by name."""

    def decorate(command: CommandFunction) -> CommandFunction:
        @wraps(command)
        def with_sampling(**parameters: Any) -> None:
            sampling = read_flags(SamplingParams, take_given(parameters, _PREFIX), _flag)
            speculation = read_flags(Speculation, take_given(parameters, _SPECULATION_PREFIX), _speculation_flag)
            with _naming_flags():
                if speculation:
                    sampling["speculation"] = Speculation(**speculation)
                # Reports invalid values now, not after the model was loaded; the longest possible answer is not known
                # yet.
                SamplingParams(**{"max_tokens": None, **sampling})
            command(sampling=sampling, **parameters)

        decorated = field_options(
            Speculation, section=_SPECULATION, prefix=_SPECULATION_PREFIX, spell=_speculation_flag
        )(with_sampling)
        return field_options(
            SamplingParams,
            section=_SECTION,
            prefix=_PREFIX,
            left_out=(*left_out, *_NOT_FLAGS),
            spell=_flag,
            defaults={"max_tokens": _MAX_TOKENS},
        )(decorated)

    return decorate


def sampling_params(
    recommended: Mapping[str, Any], sampling: Mapping[str, Any], max_model_len: int = _MAX_TOKENS
) -> SamplingParams:
    """Return what the model recommends, with the user's own parameters over it; the default length fits the model."""
    # The library's short default suits tests and scripts; here a person waits for a whole answer.
    return SamplingParams.from_dict({"max_tokens": min(_MAX_TOKENS, max_model_len), **recommended, **sampling})


@contextmanager
def _naming_flags() -> Iterator[None]:
    """Name flags instead of parameters in errors."""
    try:
        yield
    except InvalidParameter as error:
        name = error.name.removeprefix("speculation.")
        flag = _flag(name) if name == error.name else _speculation_flag(name)
        raise ConfigError(str(error).replace(f"{error.name} = ", f"{flag} ", 1)) from error


def _flag(field_name: str) -> str:
    # --seed is the engine's: it seeds dummy weights, and the requests that have no seed of their own.
    return "--sampling-seed" if field_name == "seed" else flag_name(field_name)


def _speculation_flag(field_name: str) -> str:
    return "--speculation-method" if field_name == "method" else flag_name(field_name)
