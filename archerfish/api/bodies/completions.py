"""/v1/completions."""

from typing import Annotated, ClassVar

from pydantic import Field

from archerfish.api.bodies.common import MOST_ANSWERS, Prompts, TaggedBody, only_none


class CompletionBody(TaggedBody):
    CONTENT: ClassVar[tuple[str, ...]] = (*TaggedBody.CONTENT, "prompt")

    prompt: Prompts
    max_tokens: Annotated[int, Field(ge=0)] | None = None
    """16 by default. 0 writes nothing: with echo, that scores the prompt."""
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    prompt_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    """How likely each token of the prompt was, and so many likeliest ones at its place."""
    best_of: Annotated[int, Field(ge=1, le=MOST_ANSWERS)] | None = None
    """Write so many answers to each prompt, and return the n with the highest mean log-probability of a token."""
    suffix: Annotated[
        str | None, only_none("this engine fills no gaps: it only continues the prompt; leave the suffix out")
    ] = None
    echo: bool = False
    add_special_tokens: bool = False
    """Begin a text prompt with the model's own first token."""
