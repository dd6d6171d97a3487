"""Bodies of endpoints that take plain prompts: completions, embeddings, and token ids of texts."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from archerfish.api.bodies.chat import ChatMessage
from archerfish.api.bodies.common import (
    CacheSalt,
    Label,
    NumLogprobs,
    Priority,
    Prompts,
    RequestBody,
    RequestId,
    TaggedBody,
    Text,
    TokenIds,
    Truncation,
    User,
)


class CompletionBody(TaggedBody):
    CONTENT: ClassVar[tuple[str, ...]] = (*TaggedBody.CONTENT, "prompt")

    prompt: Prompts
    max_tokens: Annotated[int, Field(ge=0)] | None = None
    """16 by default. 0 writes nothing: with echo, that scores the prompt."""
    logprobs: NumLogprobs | None = None
    echo: bool = False
    add_special_tokens: bool = True
    """Put the tokens around a text prompt that the tokenizer puts around a text, such as a first one."""


class EmbeddingBody(RequestBody):
    model: Label | None = None
    input: Prompts
    dimensions: Annotated[int, Field(ge=1)] | None = None
    """Numbers in an embedding: fewer than the model makes only where it was trained for that (Matryoshka)."""
    encoding_format: Literal["float", "base64"] = "float"
    normalize: bool | None = None
    """Scale embeddings to length 1. By default only those with fewer dimensions are scaled."""
    add_special_tokens: bool = True
    """Put the tokens around a text that the tokenizer puts there, such as a first one."""
    truncate_prompt_tokens: Truncation | None = None
    priority: Priority = 0
    """Lower goes first."""
    cache_salt: CacheSalt = ""
    """Prefixes are shared only with requests of the same salt."""
    request_id: RequestId | None = None
    user: User | None = None


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
