"""What the API process and the engine process say to each other, and how it becomes bytes."""

from typing import Any

import msgspec

from archerfish.config.settings import EngineConfig
from archerfish.machine.peak import Peak
from archerfish.metrics.state import EngineInfo, EngineState
from archerfish.request import FinishReason, Request, TokenEvent


class _Message(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Plain data with a tag that says which it is."""


# -- to the engine ----------------------------------------------------------------------------------------------------


class Start(_Message, frozen=True):
    """The first message, and only once: build the engine."""

    config: EngineConfig
    builder: str
    """The function that builds it, as module:name."""
    measures_peak: bool = False
    """Whether to find out, when there is nothing else to do, what the device can do at most."""
    log_json: bool = False
    """Whether log lines are JSON objects."""
    heartbeat_ms: int = 1000
    """How often an engine without work sends a heartbeat."""


class Cancel(_Message, frozen=True):
    request_id: str
    index: int | None = None
    """One of the request's sequences, or all of them."""
    reason: FinishReason = FinishReason.ABORT


class ShowBlocks(_Message, frozen=True):
    """Asks for a Blocks."""


class Stop(_Message, frozen=True):
    """End now; what is open is lost."""


ToEngine = Start | Request | Cancel | ShowBlocks | Stop


# -- from the engine --------------------------------------------------------------------------------------------------


class Loading(_Message, frozen=True):
    share: float
    """Of the weights, from 0 to 1."""


class EngineFacts(_Message, frozen=True):
    """What must be known of an engine to make requests for it."""

    model: str
    family: str
    """The model_type of config.json."""
    tokenizer_directory: str | None
    """None if prompts and answers are token ids."""
    vocab_size: int
    max_model_len: int
    max_positions: int | None
    """Longest context the model could be started with; None where there is no end."""
    max_num_seqs: int
    block_size: int
    num_blocks: int
    dtype: str
    device: str
    speculation_methods: tuple[str, ...]
    """What requests may choose from."""
    hidden_size: int
    """Numbers in an embedding."""
    embedding_sizes: tuple[int, ...] | None
    """What embeddings can be cut to, as the model was trained for; None is any size."""
    recommended: dict[str, Any]
    """Sampling parameters that the model's makers recommend, by name."""
    info: EngineInfo | None = None


class Ready(_Message, frozen=True):
    facts: EngineFacts


class Refused(_Message, frozen=True):
    """A request that the scheduler would not take."""

    request_id: str
    error: str


class Stepped(_Message, frozen=True):
    """What one step brought; without events also how things are where no step will tell."""

    events: list[TokenEvent]
    state: EngineState


class Heartbeat(_Message, frozen=True):
    """The engine has nothing to do, and is alive."""


class Blocks(_Message, frozen=True):
    state_of_each: bytes
    """One byte for each block: 0 free, 1 cached, 2 in use."""


class PeakMeasured(_Message, frozen=True):
    peak: Peak


class Ending(_Message, frozen=True):
    """The last message: why the engine goes no further."""

    reason: str
    can_be_fixed: bool
    """A user can fix it: another start with the same settings would end the same way."""


FromEngine = Loading | Ready | Refused | Stepped | Heartbeat | Blocks | PeakMeasured | Ending

_encoder = msgspec.msgpack.Encoder()
_to_engine = msgspec.msgpack.Decoder(ToEngine)
_from_engine = msgspec.msgpack.Decoder(FromEngine)


def encode(message: ToEngine | FromEngine) -> bytes:
    return _encoder.encode(message)


def read_to_engine(data: bytes) -> ToEngine:
    message: ToEngine = _to_engine.decode(data)
    return message


def read_from_engine(data: bytes) -> FromEngine:
    message: FromEngine = _from_engine.decode(data)
    return message
