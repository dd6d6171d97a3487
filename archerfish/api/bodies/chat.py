"""Bodies of /v1/chat/completions."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from archerfish.api.bodies.common import Body, Effort, Label, NumLogprobs, TaggedBody, Text


class TextPart(Body):
    type: Literal["text"]
    text: Text


class FunctionCall(Body):
    name: Label
    arguments: str
    """JSON."""


class MessageToolCall(Body):
    id: Label | None = None
    type: Literal["function"] = "function"
    function: FunctionCall
    index: int | None = None


def _is_text_or_parts(content: object) -> str:
    return "parts" if isinstance(content, list) else "text"


Content = Annotated[
    Annotated[Text, Tag("text")] | Annotated[list[TextPart], Tag("parts")], Discriminator(_is_text_or_parts)
]


class ChatMessage(Body):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Content | None = None
    reasoning_content: Text | None = None
    """Reasoning of an earlier answer, sent back unchanged. Templates show what they have use for."""
    reasoning: Annotated[Text | None, Field(exclude=True)] = None
    """Another name for reasoning_content."""
    invalid_tool_calls: Annotated[list[Any] | None, Field(exclude=True)] = None
    """Invalid calls of an earlier answer. The model does not see them."""
    name: Label | None = None
    tool_calls: list[MessageToolCall] | None = None
    tool_call_id: Label | None = None
    refusal: None = None
    annotations: Annotated[list[Any], Field(max_length=0)] | None = None
    audio: None = None
    function_call: None = None

    @model_validator(mode="after")
    def _one_name(self) -> "ChatMessage":
        if self.reasoning_content is None:
            self.reasoning_content = self.reasoning
        return self


class FunctionName(Body):
    name: Label


class NamedToolChoice(Body):
    type: Literal["function"]
    function: FunctionName


class ChatBody(TaggedBody):
    CONTENT: ClassVar[tuple[str, ...]] = (
        *TaggedBody.CONTENT,
        *("messages", "tools", "tool_choice", "chat_template_kwargs"),
    )

    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool | None = None
    top_logprobs: NumLogprobs | None = None
    reasoning_effort: Effort | None = None
    """How much the model should think, where its chat template has a variable for it."""
    thinking_token_budget: Annotated[int, Field(ge=1)] | None = None
    """Most tokens of reasoning; then the answer must begin."""
    include_reasoning: bool = True
    """Whether the reply tells the reasoning. It is counted either way."""
    tools: list[dict[str, Any]] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedToolChoice | None = None
    parallel_tool_calls: bool | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    add_special_tokens: bool = False
    """Put the tokens around the prompt that the tokenizer puts around a text. Templates write them themselves."""
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    """Variables for the model's chat template."""
    modalities: Annotated[list[Literal["text"]], Field(min_length=1, max_length=1)] | None = None
    verbosity: Literal["medium"] | None = None

    @property
    def max_tokens_name(self) -> str:
        return "max_tokens" if self.max_completion_tokens is None else "max_completion_tokens"
