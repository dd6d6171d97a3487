"""Bodies of /v1/responses, and the conversion of their items to messages of the chat API."""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator

from archerfish.api.bodies.common import (
    Body,
    ChoiceFormat,
    Effort,
    GenerationBody,
    GrammarFormat,
    JsonObjectFormat,
    JsonSchema,
    JsonSchemaFormat,
    Label,
    Metadata,
    RegexFormat,
    ResponseFormat,
    Text,
    TextFormat,
)

LOGPROBS = "message.output_text.logprobs"

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
Status = Literal["in_progress", "completed", "incomplete"]


class InputText(Body):
    type: Literal["input_text"]
    text: Text


class OutputText(Body):
    """Text of an earlier answer, sent back unchanged."""

    type: Literal["output_text"]
    text: Text
    annotations: Annotated[list[Any], Field(max_length=0)] | None = None
    logprobs: list[Any] | None = None


Part = Annotated[InputText | OutputText, Discriminator("type")]


def _as_parts(content: object) -> object:
    return [{"type": "input_text", "text": content}] if isinstance(content, str) else content


class MessageItem(Body):
    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: Annotated[list[Part], BeforeValidator(_as_parts, json_schema_input_type=Text | list[Part])]
    """A text, or parts."""
    id: Label | None = None
    status: Status | None = None
    phase: None = None


class FunctionCallItem(Body):
    """A call the model has made."""

    type: Literal["function_call"]
    call_id: Label
    name: Name
    arguments: Text
    """JSON."""
    id: Label | None = None
    status: Status | None = None


class FunctionCallOutputItem(Body):
    """The result of a tool call."""

    type: Literal["function_call_output"]
    call_id: Label
    output: Annotated[list[InputText], BeforeValidator(_as_parts, json_schema_input_type=Text | list[InputText])]
    """A text, or parts."""
    id: Label | None = None
    status: Status | None = None


class ReasoningText(Body):
    type: Literal["reasoning_text"]
    text: Text


class ReasoningItem(Body):
    """Reasoning of an earlier answer, sent back unchanged."""

    type: Literal["reasoning"]
    content: list[ReasoningText] | None = None
    summary: Annotated[list[Any], Field(max_length=0)] | None = None
    encrypted_content: None = None
    id: Label | None = None
    status: Status | None = None


def _item_type(item: object) -> str:
    if isinstance(item, Mapping):
        return str(item.get("type") or "message")
    return str(getattr(item, "type", ""))


Item = Annotated[
    Annotated[MessageItem, Tag("message")]
    | Annotated[FunctionCallItem, Tag("function_call")]
    | Annotated[FunctionCallOutputItem, Tag("function_call_output")]
    | Annotated[ReasoningItem, Tag("reasoning")],
    Discriminator(_item_type),
]


Items = Annotated[list[Item], Field(min_length=1)]


def _as_items(given: object) -> object:
    return [{"role": "user", "content": given}] if isinstance(given, str) else given


class FlatJsonSchemaFormat(JsonSchema):
    type: Literal["json_schema"]


class TextConfig(Body):
    format: (
        Annotated[
            TextFormat | JsonObjectFormat | FlatJsonSchemaFormat | RegexFormat | ChoiceFormat | GrammarFormat,
            Discriminator("type"),
        ]
        | None
    ) = None
    verbosity: Literal["medium"] | None = None

    @property
    def response_format(self) -> ResponseFormat | None:
        """The same value in the format of the chat API."""
        if isinstance(self.format, FlatJsonSchemaFormat):
            return JsonSchemaFormat(type="json_schema", json_schema=self.format)
        return self.format


class FunctionTool(Body):
    type: Literal["function"]
    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None

    @property
    def tool(self) -> dict[str, Any]:
        """The same value in the format of the chat API."""
        return {"type": "function", "function": self.model_dump(exclude={"type"}, exclude_none=True)}


class FunctionToolChoice(Body):
    type: Literal["function"]
    name: Label

    @property
    def choice(self) -> dict[str, Any]:
        """The same value in the format of the chat API."""
        return {"type": "function", "function": {"name": self.name}}


class AllowedTools(Body):
    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Annotated[list[FunctionToolChoice], Field(min_length=1)]

    @property
    def choice(self) -> dict[str, Any]:
        """The same value in the format of the chat API."""
        tools = [tool.choice for tool in self.tools]
        return {"type": "allowed_tools", "allowed_tools": {"mode": self.mode, "tools": tools}}


class ReasoningConfig(Body):
    effort: Effort | None = None
    """How much the model should think, where its chat template has a variable for it."""
    summary: Literal["auto"] | None = None
    """Has no effect: reasoning is returned in full, without summaries."""
    generate_summary: None = None


class ResponsesBody(GenerationBody):
    CONTENT: ClassVar[tuple[str, ...]] = (*GenerationBody.CONTENT, "input")

    input: Annotated[Items, BeforeValidator(_as_items, json_schema_input_type=Text | Items)]
    """A text, or items of a conversation."""
    instructions: Text | None = None
    """A system message for this response alone: not carried over to those that continue it."""
    previous_response_id: Label | None = None
    max_output_tokens: Annotated[int, Field(ge=1)] | None = None
    text: TextConfig | None = None
    tools: list[FunctionTool] | None = None
    tool_choice: Literal["none", "auto", "required"] | FunctionToolChoice | AllowedTools | None = None
    parallel_tool_calls: bool | None = None
    include: list[Literal["message.output_text.logprobs"]] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    metadata: Metadata | None = None
    store: bool | None = None
    """Whether the response is stored, to be read or continued later. By default it is."""
    background: bool | None = None
    """Write it whether or not anybody waits for it."""
    truncation: Literal["disabled"] | None = None
    reasoning: ReasoningConfig | None = None
    thinking_token_budget: Annotated[int, Field(ge=1)] | None = None
    """Most tokens of reasoning; then the answer must begin."""
    service_tier: Literal["auto", "default"] | None = None
    prompt_cache_key: Label | None = None
    """Not needed: shared prefixes are found by themselves."""
    safety_identifier: Annotated[str, Field(max_length=128)] | None = None
    """Another name for user."""
    # Of the API, but nothing that could be done here.
    conversation: None = None
    max_tool_calls: None = None
    prompt: None = None
    # Of other endpoints.
    n: None = None
    response_format: None = None
    stream_options: None = None

    @model_validator(mode="after")
    def _whom_it_is_for(self) -> "ResponsesBody":
        self.user = self.user or self.safety_identifier
        return self

    @property
    def max_tokens_name(self) -> str:
        return "max_output_tokens"

    @property
    def is_stored(self) -> bool:
        return self.store is not False

    @property
    def chat_tools(self) -> list[dict[str, Any]] | None:
        return [tool.tool for tool in self.tools] if self.tools else None

    @property
    def chat_tool_choice(self) -> object:
        if isinstance(self.tool_choice, (FunctionToolChoice, AllowedTools)):
            return self.tool_choice.choice
        return None if self.tool_choice == "auto" else self.tool_choice

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The messages in the format of the chat API."""
        return chat_messages(item.model_dump(exclude_none=True) for item in self.input)


def chat_messages(items: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Items as messages of the chat API.

    Reasoning joins the words and calls behind it, and calls the words before them: to a template they are one turn.
    """
    messages: list[dict[str, Any]] = []
    is_thinking = False
    """Whether the last message is the assistant's, with only its reasoning as yet."""
    for item in items:
        if item["type"] == "reasoning":
            text = "".join(part["text"] for part in item.get("content") or ())
            messages.append({"role": "assistant", "content": "", "reasoning_content": text})
            is_thinking = True
            continue
        if item["type"] == "message" and is_thinking and item["role"] == "assistant":
            messages[-1]["content"] = _content(item["content"])
        elif item["type"] == "message":
            messages.append({"role": item["role"], "content": _content(item["content"])})
        elif item["type"] == "function_call":
            if not messages or messages[-1]["role"] != "assistant":
                messages.append({"role": "assistant", "content": ""})
            function = {"name": item["name"], "arguments": item["arguments"]}
            calls = messages[-1].setdefault("tool_calls", [])
            calls.append({"id": item["call_id"], "type": "function", "function": function})
        else:
            content = _content(item["output"])
            messages.append({"role": "tool", "tool_call_id": item["call_id"], "content": content})
        is_thinking = False
    return messages


def _content(parts: list[dict[str, Any]]) -> str | list[dict[str, Any]]:
    if len(parts) == 1:
        return str(parts[0]["text"])
    return [{"type": "text", "text": part["text"]} for part in parts]
