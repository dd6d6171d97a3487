"""Bodies of /tokenize and /detokenize."""

from typing import Annotated, Any

from pydantic import Field, model_validator

from archerfish.api.bodies.chat import ChatMessage
from archerfish.api.bodies.common import Label, RequestBody, Text, TokenIds


class TokenizeBody(RequestBody):
    """A prompt, or the messages of a chat."""

    model: Label | None = None
    prompt: Text | None = None
    messages: Annotated[list[ChatMessage], Field(min_length=1)] | None = None
    tools: list[dict[str, Any]] | None = None
    add_special_tokens: bool | None = None
    """Put the tokens there that the tokenizer puts around a text. By default around a prompt, and not around a chat,
    whose template writes them itself."""
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    """Variables for the model's chat template."""
    return_token_strs: bool = False

    @model_validator(mode="after")
    def _one_of_them(self) -> "TokenizeBody":
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("give either prompt or messages")
        for name in ("tools", "continue_final_message", "chat_template_kwargs"):
            if self.prompt is not None and getattr(self, name):
                raise ValueError(f"{name} belongs to messages; leave it out")
        return self


class DetokenizeBody(RequestBody):
    model: Label | None = None
    tokens: TokenIds
