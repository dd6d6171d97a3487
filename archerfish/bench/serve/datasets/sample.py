"""One request of a load: what to ask, and what is known of it beforehand. Knows no server."""

from dataclasses import dataclass
from typing import NamedTuple


class SampleMessage(NamedTuple):
    role: str
    content: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    prompt: str | tuple[SampleMessage, ...]
    """A text, or the messages of a chat."""
    num_prompt_tokens: int | None
    """None where no tokenizer is known. The server may add tokens of its own."""
    num_output_tokens: int
    """Most tokens to write."""
    must_write_all: bool
    """Whether the load needs exactly so many, and not at most."""
    num_shared_tokens: int | None
    """Number of first tokens shared with other samples by construction; None where that is unknown."""
    time: float | None = None
    """When a trace saw it, in seconds."""
