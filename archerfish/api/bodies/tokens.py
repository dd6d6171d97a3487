"""/tokenize and /detokenize."""

from pydantic import model_validator

from archerfish.api.bodies.chat import ChatMessage
from archerfish.api.bodies.common import Body, Label, Text, TokenIds


class TokenizeBody(Body):
    """A prompt, or the messages of a chat."""

    model: Label | None = None
    prompt: Text | None = None
    messages: list[ChatMessage] | None = None
    add_special_tokens: bool = False
    add_generation_prompt: bool = True
    return_token_strs: bool = False

    @model_validator(mode="after")
    def _one_of_them(self) -> "TokenizeBody":
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("give either prompt or messages")
        return self


class DetokenizeBody(Body):
    model: Label | None = None
    tokens: TokenIds
