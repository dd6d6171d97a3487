"""Bodies of /v1/messages, in the shape of Anthropic's API, and their conversion to messages of the chat API."""

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Discriminator, Field, model_validator

from archerfish.api.bodies.common import (
    MOST_STOPS,
    Body,
    Effort,
    GenerationBody,
    JsonSchema,
    JsonSchemaFormat,
    Label,
    Text,
)

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]


class CacheControl(Body):
    """Has no effect: prefixes are cached as long as there is memory for them."""

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = None


class TextBlock(Body):
    type: Literal["text"]
    text: Text
    cache_control: CacheControl | None = None
    citations: None = None


class ToolUseBlock(Body):
    """A call the model has made."""

    type: Literal["tool_use"]
    id: Label
    name: Name
    input: dict[str, Any]
    cache_control: CacheControl | None = None


def _as_blocks(content: object) -> object:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


TextBlocks = Annotated[list[TextBlock], BeforeValidator(_as_blocks, json_schema_input_type=Text | list[TextBlock])]
"""Or a text."""


class ToolResultBlock(Body):
    """The result of a tool call."""

    type: Literal["tool_result"]
    tool_use_id: Label
    content: TextBlocks | None = None
    is_error: bool = False
    cache_control: CacheControl | None = None


class ThinkingBlock(Body):
    """Reasoning of an earlier answer, sent back unchanged."""

    type: Literal["thinking"]
    thinking: Text
    signature: str | None = None
    """Accepted and not checked: reasoning is accepted from every client."""


Block = Annotated[TextBlock | ThinkingBlock | ToolUseBlock | ToolResultBlock, Discriminator("type")]


class MessageBody(Body):
    role: Literal["user", "assistant", "system"]
    content: Annotated[list[Block], BeforeValidator(_as_blocks, json_schema_input_type=Text | list[Block])]
    """A text, or blocks."""

    @model_validator(mode="after")
    def _blocks_fit_the_role(self) -> "MessageBody":
        for block in self.content:
            role = {"tool_use": "assistant", "thinking": "assistant", "tool_result": "user"}.get(block.type)
            if role not in (None, self.role):
                raise ValueError(f"a {block.type} block belongs in a message of the {role}")
        return self


class MessagesTool(Body):
    name: Name
    input_schema: dict[str, Any]
    description: str | None = None
    strict: bool | None = None
    type: Literal["custom"] | None = None
    cache_control: CacheControl | None = None
    eager_input_streaming: bool | None = None
    """Not needed: arguments are always streamed as they are written."""


class MessagesToolChoice(Body):
    type: Literal["auto", "any", "none"]
    disable_parallel_tool_use: bool = False

    @property
    def choice(self) -> object:
        """The same value in the format of the chat API."""
        return {"auto": None, "any": "required", "none": "none"}[self.type]


class NamedAnthropicTool(Body):
    type: Literal["tool"]
    name: Label
    disable_parallel_tool_use: bool = False

    @property
    def choice(self) -> object:
        """The same value in the format of the chat API."""
        return {"type": "function", "function": {"name": self.name}}


class NoThinking(Body):
    type: Literal["disabled"]


class ThinkingBudget(Body):
    type: Literal["enabled"]
    budget_tokens: Annotated[int, Field(ge=1)]
    """Most tokens of thinking; then the answer must begin."""


class AdaptiveThinking(Body):
    type: Literal["adaptive"]


class JsonOutput(Body):
    type: Literal["json_schema"]
    schema_: Annotated[dict[str, Any], Field(alias="schema")]


class OutputConfig(Body):
    format: JsonOutput | None = None
    effort: Effort | None = None
    """How much the model should think, where its chat template has a variable for it."""


class MessagesMetadata(Body):
    user_id: Annotated[str, Field(max_length=256)] | None = None


class CountTokensBody(GenerationBody):
    """A conversation, of which nothing is written yet."""

    CONTENT: ClassVar[tuple[str, ...]] = (
        *GenerationBody.CONTENT,
        "messages",
        "system",
        "tools",
        "tool_choice",
        "output_config",
    )

    messages: Annotated[list[MessageBody], Field(min_length=1)]
    """One of the assistant at the end is continued."""
    system: TextBlocks | None = None
    """A text, or blocks."""
    tools: list[MessagesTool] | None = None
    tool_choice: Annotated[MessagesToolChoice | NamedAnthropicTool, Discriminator("type")] | None = None
    output_config: OutputConfig | None = None
    thinking: Annotated[NoThinking | ThinkingBudget | AdaptiveThinking, Discriminator("type")] | None = None
    cache_control: CacheControl | None = None
    # Of other endpoints, or under another name here.
    n: None = None
    stop: None = None
    response_format: None = None
    stream_options: None = None

    @property
    def chat_messages(self) -> list[dict[str, Any]]:
        system = [] if not self.system else [{"role": "system", "content": _content(self.system)}]
        return [*system, *(chat_message for message in self.messages for chat_message in _chat_messages(message))]

    @property
    def continues_answer(self) -> bool:
        return self.messages[-1].role == "assistant"

    @property
    def chat_tools(self) -> list[dict[str, Any]] | None:
        return [_chat_tool(tool) for tool in self.tools] if self.tools else None

    @property
    def chat_tool_choice(self) -> object:
        return None if self.tool_choice is None else self.tool_choice.choice

    @property
    def parallel(self) -> bool:
        return self.tool_choice is None or not self.tool_choice.disable_parallel_tool_use

    @property
    def wanted_format(self) -> JsonSchemaFormat | None:
        """The same value in the format of the chat API."""
        if self.output_config is None or self.output_config.format is None:
            return None
        schema = JsonSchema.model_validate({"name": "answer", "schema": self.output_config.format.schema_})
        return JsonSchemaFormat(type="json_schema", json_schema=schema)


class MessagesBody(CountTokensBody):
    max_tokens: Annotated[int, Field(ge=1)]
    stop_sequences: Annotated[list[str], Field(max_length=MOST_STOPS)] | None = None
    metadata: MessagesMetadata | None = None
    service_tier: Literal["auto", "standard_only"] | None = None

    @model_validator(mode="after")
    def _whom_it_is_for(self) -> "MessagesBody":
        if self.metadata is not None:
            self.user = self.user or self.metadata.user_id
        return self


def _chat_messages(message: MessageBody) -> Iterator[dict[str, Any]]:
    """Results of tools are messages of their own; words and calls of the assistant are one."""
    words: list[TextBlock] = []
    thoughts: list[str] = []
    calls: list[dict[str, Any]] = []
    for block in message.content:
        if isinstance(block, TextBlock):
            words.append(block)
        elif isinstance(block, ThinkingBlock):
            thoughts.append(block.thinking)
        elif isinstance(block, ToolUseBlock):
            function = {"name": block.name, "arguments": block.input}
            calls.append({"id": block.id, "type": "function", "function": function})
        else:
            if words:
                yield {"role": message.role, "content": _content(words)}
                words = []
            yield {"role": "tool", "tool_call_id": block.tool_use_id, "content": _result(block)}
    thought = {"reasoning_content": "".join(thoughts)} if thoughts else {}
    if calls:
        yield {"role": message.role, "content": _content(words), "tool_calls": calls, **thought}
    elif words or thoughts or not message.content:
        yield {"role": message.role, "content": _content(words), **thought}


def _result(block: ToolResultBlock) -> str:
    text = "".join(part.text for part in block.content or ())
    return f"Error: {text}" if block.is_error else text  # Templates have no other way to say so.


def _content(blocks: list[TextBlock]) -> str | list[dict[str, Any]]:
    if len(blocks) <= 1:
        return "".join(block.text for block in blocks)
    return [{"type": "text", "text": block.text} for block in blocks]


def _chat_tool(tool: MessagesTool) -> dict[str, Any]:
    function: dict[str, Any] = {"name": tool.name, "parameters": tool.input_schema}
    if tool.description is not None:
        function["description"] = tool.description
    if tool.strict is not None:
        function["strict"] = tool.strict
    return {"type": "function", "function": function}
