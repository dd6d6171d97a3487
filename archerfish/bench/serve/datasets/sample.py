"""One request of a load: its prompt, and what is known of it beforehand. Knows no server."""

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
    """Number of prompt tokens; None without a tokenizer. The server may add tokens of its own."""
    num_output_tokens: int
    """Maximum number of output tokens."""
    must_write_all: bool
    """Whether the output must have exactly this length."""
    num_shared_tokens: int | None
    """Number of first tokens shared with other samples by construction; None where that is unknown."""
    time: float | None = None
    """Arrival time in the trace, in seconds."""
