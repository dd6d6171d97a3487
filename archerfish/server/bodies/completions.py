"""/v1/completions."""

from typing import Annotated

from pydantic import Field

from archerfish.server.bodies.common import GenerationBody, Text, TokenIds

MOST_PROMPTS = 2048


class CompletionBody(GenerationBody):
    prompt: (
        Text
        | TokenIds
        | Annotated[list[Text], Field(min_length=1, max_length=MOST_PROMPTS)]
        | Annotated[list[TokenIds], Field(min_length=1, max_length=MOST_PROMPTS)]
    )
    max_tokens: Annotated[int, Field(ge=0)] | None = None
    """16 by default. 0 writes nothing: with echo, that scores the prompt."""
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    echo: bool = False
    add_special_tokens: bool = False
    """Begin a text prompt with the model's own first token."""

    @property
    def prompts(self) -> list[str] | list[list[int]]:
        if isinstance(self.prompt, str):
            return [self.prompt]
        if isinstance(self.prompt[0], int):
            return [self.prompt]
        return self.prompt
