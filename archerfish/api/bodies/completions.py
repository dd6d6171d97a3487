"""Bodies of /v1/completions."""

from typing import Annotated, ClassVar

from pydantic import Field

from archerfish.api.bodies.common import NumLogprobs, Prompts, TaggedBody


class CompletionBody(TaggedBody):
    CONTENT: ClassVar[tuple[str, ...]] = (*TaggedBody.CONTENT, "prompt")

    prompt: Prompts
    max_tokens: Annotated[int, Field(ge=0)] | None = None
    """16 by default. 0 writes nothing: with echo, that scores the prompt."""
    logprobs: NumLogprobs | None = None
    echo: bool = False
    add_special_tokens: bool = True
    """Put the tokens around a text prompt that the tokenizer puts around a text, such as a first one."""
