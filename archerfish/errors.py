"""The one exception tree: what a user can fix, and what ends the engine. Knows nothing else of the package.

ArcherfishError
├── UserError                 a person can fix it; commands print one line and exit with code 2
│   ├── ConfigError           a setting or flag that cannot work
│   ├── ModelError            the model cannot be used
│   │   ├── ModelNotFound         no such directory, model in the box or hub name
│   │   ├── UnsupportedModel      an architecture or config field that is not understood
│   │   ├── CheckpointError       weights that are missing, broken or of the wrong shape
│   │   └── TokenizerError        no tokenizer, a broken one, or no chat template
│   ├── RequestError          one request is refused; the others go on
│   │   ├── InvalidParameter      a parameter that is unknown or out of range
│   │   ├── PromptTooLong         the prompt does not fit the context
│   │   ├── NotFound              no such file or batch, or another tenant's
│   │   ├── FileTooLarge          an upload exceeds what is taken
│   │   ├── QuotaExceeded         files take as much as they may
│   │   ├── TooManyBatches        too many batches have not ended
│   │   └── WrongState            not now: a file in use, a batch that has ended
│   ├── DoesNotFit            weights, activations and KV cache exceed the memory
│   ├── StorageFull           the disk that keeps files and batches has no room
│   ├── InvalidMeasurement    a benchmark measured something else than it should have
│   └── NoKernel              no implementation of an operation supports what was asked
└── EngineError               the engine cannot go on
    ├── StepFailed                a step raised; every open request ends with this reason
    ├── OutOfBounds               a step exceeds what its kernels were built for; nothing of it was computed
    └── EngineStopped             work was given to an engine that has ended
"""

from typing import Any

_MOST_SHOWN = 1000
"""Characters of a value that an error message repeats."""
_MOST_ITEMS_SHOWN = 100
_MOST_BITS_SHOWN = 256


class ArcherfishError(Exception):
    """Base of everything the package raises on purpose. Can be sent to another process."""

    def __reduce__(self) -> tuple[Any, ...]:
        # An exception is made again by giving its message to __init__, which here often takes something else.
        return _restore, (type(self), self.args), self.__dict__


def _restore(kind: type[ArcherfishError], arguments: tuple[object, ...]) -> ArcherfishError:
    """As it was, without __init__: a value that was refused may be of any kind, so it did not travel."""
    return kind.__new__(kind, *arguments)


class UserError(ArcherfishError):
    """Something a person can fix."""


class ConfigError(UserError):
    """A setting or flag that cannot work."""


class ModelError(UserError):
    """The model cannot be used."""


class ModelNotFound(ModelError):
    """There is no such directory, model in the box or hub name."""


class UnsupportedModel(ModelError):
    """An architecture or config field that is not understood."""


class CheckpointError(ModelError):
    """Weights that are missing, broken or of the wrong shape."""


class TokenizerError(ModelError):
    """No tokenizer, a broken one, or no chat template."""


class RequestError(UserError):
    """One request is refused; the others go on."""


class InvalidParameter(RequestError):
    """A parameter that is unknown or out of range."""

    def __init__(self, name: str, value: object, allowed: str) -> None:
        super().__init__(f"{name} = {shown_value(value)} is not valid: {allowed}")
        self.name = name

    def renamed(self, name: str) -> "InvalidParameter":
        """Change the name to the one that the client used."""
        self.args = (f"{name}{str(self).removeprefix(self.name)}",)
        self.name = name
        return self


def shown_value(value: object) -> str:
    """The value as Python writes it, within a bound: it may be a whole document, or a number of a million digits."""
    if isinstance(value, int) and value.bit_length() > _MOST_BITS_SHOWN:
        return f"a number of {value.bit_length()} bits"
    if isinstance(value, (list, tuple, dict, set)) and len(value) > _MOST_ITEMS_SHOWN:
        return f"({len(value)} items)"
    try:
        text = repr(value)
    except (ValueError, RecursionError):
        return "..."
    return text if len(text) <= _MOST_SHOWN else text[:_MOST_SHOWN] + "..."


class PromptTooLong(RequestError):
    """The prompt leaves no room for even one new token."""

    def __init__(self, length: int, limit: int, max_positions: int | None = None) -> None:
        could_be_longer = max_positions is None or length < max_positions
        super().__init__(
            f"the prompt has {length} tokens, but the context holds {limit} and one must be left for the answer; "
            f"shorten the prompt to {limit - 1} tokens"
            + (f" or start with --max-model-len {length + 1} or more" if could_be_longer else "")
        )
        self.length = length
        self.limit = limit


class NotFound(RequestError):
    """There is no such file or batch. The error is the same for those of other tenants and those that never existed."""


class FileTooLarge(RequestError):
    """An upload exceeds what is taken."""


class QuotaExceeded(RequestError):
    """The files of a tenant are as many, or take as many bytes, as they may."""


class TooManyBatches(RequestError):
    """A tenant has as many batches that have not ended as it may have."""


class WrongState(RequestError):
    """What was asked cannot be done now: the file is in use, or the batch has ended."""


class DoesNotFit(UserError):
    """Weights, activations and KV cache exceed the memory."""


class StorageFull(UserError):
    """The disk that keeps files and batches has no room."""


class InvalidMeasurement(UserError):
    """A benchmark measured something else than it should have, and its figures must not be used."""


class NoKernel(UserError):
    """No implementation of an operation supports what was asked."""


class EngineError(ArcherfishError):
    """The engine cannot go on."""


class StepFailed(EngineError):
    """A step raised; every open request ended with this reason."""


class OutOfBounds(EngineError):
    """A step exceeds what its kernels were built for. Nothing of it was computed."""

    def __init__(self, what: str, given: int, least: int, most: int) -> None:
        super().__init__(f"{what} is {given}, where the kernels were built for {least} to {most}")


class EngineStopped(EngineError):
    """Work was given to an engine that has ended."""
