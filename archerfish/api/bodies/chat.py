"""/v1/chat/completions."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from archerfish.api.bodies.common import Body, GenerationBody, Text


class TextPart(Body):
    type: Literal["text"]
    text: Text


class FunctionCall(Body):
    name: str
    arguments: str
    """JSON."""


class ToolCall(Body):
    id: str | None = None
    type: Literal["function"] = "function"
    function: FunctionCall
    index: int | None = None


class ChatMessage(Body):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Text | list[TextPart] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    refusal: None = None
    annotations: Annotated[list[Any], Field(max_length=0)] | None = None
    audio: None = None
    function_call: None = None


class FunctionChoice(Body):
    name: str


class ToolChoice(Body):
    type: Literal["function"]
    function: FunctionChoice


class ChatBody(GenerationBody):
    CONTENT: ClassVar[tuple[str, ...]] = (
        *GenerationBody.CONTENT,
        "messages",
        "tools",
        "tool_choice",
        "chat_template_kwargs",
    )

    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: Literal["none", "auto", "required"] | ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    """Variables for the model's chat template."""
