"""Messages between the service and its preprocessing workers: the model they load, then one job, one outcome."""

import io
import pickle
import struct
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from archerfish.api.endpoint_call import EndpointCall
from archerfish.api.endpoints import BODIES, HistoryNeeded, Turns, read_body
from archerfish.api.errors import ErrorReply
from archerfish.api.limits import JsonLimits
from archerfish.api.model import AnswerFormats, EmbeddingSizes, ServedModel
from archerfish.engine.input_processor import InputProcessor
from archerfish.engine.wire import EngineFacts
from archerfish.tokenizer import Tokenizer

LENGTH = struct.Struct("<Q")
"""Stands before every message: its number of bytes."""

READY, OUTCOME, LAST_OUTCOME = b"r", b"o", b"l"
"""How messages of a worker begin. After the last outcome it ends."""

_SHORT = 4096
_LARGEST_RETAINED = 1 << 20
"""Bytes of a body that stay for as long as its request is open: tools, formats, labels; everything but the prompts."""
_MODEL = "model"


class PreprocessingJob(NamedTuple):
    """A body, and what it is to be read as."""

    endpoint: str
    body: bytes
    history: Turns | None = None
    in_batch: bool = False
    """Whether it is the body of a line of a batch."""

    @property
    def size(self) -> int:
        """Bytes that are read for it."""
        return len(self.body) + sum(map(len, self.history or ()))

    @property
    def is_quick(self) -> bool:
        """Whether it surely takes no more than a few milliseconds."""
        return self.size <= _SHORT and not BODIES[self.endpoint].renders_template

    @property
    def seconds(self) -> float:
        """Processor time that it may take. Ordinary bodies take a hundredth of it."""
        return 4.0 + self.size / 1e6

    def run(self, model: ServedModel, limits: JsonLimits) -> Any:
        """An Outcome of api.endpoints, or an ErrorReply."""
        outcome = read_body(model, self.endpoint, self.body, limits, self.history, in_batch=self.in_batch)
        if len(self.body) > _LARGEST_RETAINED and not isinstance(outcome, (ErrorReply, HistoryNeeded, bytes)):
            return _retained_error(outcome) or outcome
        return outcome


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """The specification from which a worker makes the ServedModel that the service has."""

    facts: EngineFacts
    names: tuple[str, ...]
    tool_call_format: str | None
    limits: JsonLimits
    reasoning_parser: str | None = None
    chat_template: str | None = None
    """The text of a template that takes the place of the model's own."""

    @property
    def max_growth(self) -> int:
        """Bytes that a worker may take for a job. The tokenizer takes some hundred for each character of a prompt."""
        return (512 << 20) + 1024 * self.facts.max_model_len


class TooMuch(NamedTuple):
    """The job was given up: it took more of something than it may."""

    of_what: str

    @classmethod
    def processor_time(cls, job: PreprocessingJob) -> "TooMuch":
        return cls(f"{job.seconds:.0f} seconds of processor time")

    @classmethod
    def memory(cls, spec: ModelSpec) -> "TooMuch":
        return cls(f"{spec.max_growth >> 20} MiB of memory")

    @property
    def reply(self) -> ErrorReply:
        message = f"preparing this request takes more than {self.of_what}: send less"
        return ErrorReply(
            400, f"{message}; if short chats fail too, the chat template is at fault", code="too_expensive"
        )


def _retained_error(call: EndpointCall) -> ErrorReply | None:
    """Return the refusal of a call that would retain too much of its body; None if it does not."""
    inputs = call.inputs
    call.inputs = replace(inputs, prompts=[], prompt_texts=[])
    size = len(encode_outcome(call))
    call.inputs = inputs
    if size <= _LARGEST_RETAINED:
        return None
    message = f"tools, formats and other fields besides the prompt take {size:,} bytes"
    return ErrorReply(400, f"{message}, and {_LARGEST_RETAINED:,} are allowed; shorten them", code="too_large")


def encode_outcome(outcome: object) -> bytes:
    """An outcome for the other process. The model itself, which both have, is sent by name."""
    buffer = io.BytesIO()
    _OutcomePickler(buffer, protocol=pickle.HIGHEST_PROTOCOL).dump(outcome)
    return buffer.getvalue()


def decode_outcome(data: bytes, model: ServedModel) -> Any:
    return _OutcomeUnpickler(io.BytesIO(data), model).load()


class _OutcomePickler(pickle.Pickler):
    def persistent_id(self, value: object) -> str | None:
        return _MODEL if isinstance(value, ServedModel) else None


class _OutcomeUnpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, model: ServedModel) -> None:
        super().__init__(file)
        self._model = model

    def persistent_load(self, _name: str) -> ServedModel:
        return self._model


def load_model(spec: ModelSpec, clock: Callable[[], float]) -> ServedModel:
    """Read the tokenizer and its chat template; everything else is in the specification."""
    facts, directory = spec.facts, spec.facts.tokenizer_directory
    tokenizer = None if directory is None else Tokenizer.load(Path(directory), spec.chat_template)
    processor = InputProcessor(
        tokenizer, facts.vocab_size, facts.max_model_len, clock, facts.max_positions, facts.speculation_methods
    )
    formats = AnswerFormats(spec.tool_call_format, spec.reasoning_parser)
    tool_format = formats.tool_format(facts.family, tokenizer)
    reasoning_format = formats.reasoning_format(tokenizer)
    embedding = EmbeddingSizes(facts.hidden_size, facts.embedding_sizes)
    return ServedModel(spec.names, processor, facts.recommended, tool_format, reasoning_format, embedding)
