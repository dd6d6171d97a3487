"""/v1/completions."""

from typing import Annotated, ClassVar

from pydantic import Field

from archerfish.api.bodies.common import GenerationBody, Prompts


class CompletionBody(GenerationBody):
    CONTENT: ClassVar[tuple[str, ...]] = (*GenerationBody.CONTENT, "prompt")

    prompt: Prompts
    max_tokens: Annotated[int, Field(ge=0)] | None = None
    """16 by default. 0 writes nothing: with echo, that scores the prompt."""
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    echo: bool = False
    add_special_tokens: bool = False
    """Begin a text prompt with the model's own first token."""
