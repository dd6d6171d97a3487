"""Owns the model's chat template, which turns messages into the text of a prompt."""

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from archerfish.errors import ConfigError, InvalidParameter, RequestError, TokenizerError
from archerfish.tokenizer.files import read_json_object, read_text

Message = Mapping[str, Any]

_PROBE = "Archerfish"

# The space at its end shows whether the template trimmed the message.
_CONTINUE_HERE = "ARCHERFISH_CONTINUES_HERE "


class ContentFormats(NamedTuple):
    """The formats of message content that a template accepts."""

    text: bool
    parts: bool
    """A list of {"type": "text", "text": ...}."""


class ChatTemplate:
    """A model's chat templates; usually one, sometimes another for tools. Immutable after loading.

    Templates come from untrusted models, so they run in a sandbox. They are compiled when first used, so that a broken
    one does not affect completions of plain text.
    """

    def __init__(
        self,
        sources: Mapping[str, str],
        special_tokens: Mapping[str, str],
        *,
        origin: str = "the model",
        clock: Callable[[], datetime] = datetime.now,
    ) -> None:
        """`sources` are templates by name; "default" is used unless tools are passed and there is "tool_use"."""
        self._sources = dict(sources)
        self._special_tokens = dict(special_tokens)
        self._origin = origin
        self._environment = _environment(clock)
        self._compiled: dict[str, jinja2.Template] = {}
        self._content_formats: dict[str, ContentFormats] = {}

    @classmethod
    def load(
        cls,
        directory: Path,
        special_tokens: Mapping[str, str],
        *,
        clock: Callable[[], datetime] = datetime.now,
    ) -> "ChatTemplate":
        """Load from chat_template.jinja, else tokenizer_config.json, else chat_template.json; empty if there is
        none."""
        return cls(_read_sources(directory), special_tokens, origin=str(directory), clock=clock)

    @classmethod
    def given(cls, template: str, special_tokens: Mapping[str, str]) -> "ChatTemplate":
        """Create from a setting: a file name, or the template itself. Raises an error in one line if it is broken."""
        chat_template = cls({"default": _read_given(template)}, special_tokens, origin="--chat-template")
        chat_template._compile("default")
        return chat_template

    @property
    def is_present(self) -> bool:
        return bool(self._sources)

    @property
    def text(self) -> str | None:
        """The template's source, the one for tools if there is one; None if there is none."""
        return self._sources.get("tool_use", self._sources.get("default"))

    def render(
        self,
        messages: Sequence[Message],
        /,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        **variables: Any,
    ) -> str:
        """Return the prompt as text; encode it without adding special tokens, which the template has written.

        `continue_final_message` leaves the last message open for the model to continue, which excludes a generation
        prompt. `variables` are further variables of the template: `enable_thinking`, `documents`, ...
        """
        name = self._choose(tools)
        template = self._compile(name)
        _check_messages(messages)
        _check_tools(tools)
        if "messages" in variables:
            raise InvalidParameter("messages", "a template variable", "give the messages as messages")
        prepared = _in_format(messages, self._formats(name))
        if continue_final_message:
            prepared, final_text = _open_ended(prepared)
        context = {
            "documents": None,
            **self._special_tokens,
            **variables,
            "messages": prepared,
            "tools": tools,
            "add_generation_prompt": add_generation_prompt and not continue_final_message,
        }
        rendered = _run(template, context)
        return _cut_open(rendered, final_text) if continue_final_message else rendered

    def _choose(self, tools: Sequence[Mapping[str, Any]] | None) -> str:
        if not self._sources:
            raise TokenizerError(
                f"{self._origin} has no chat template: use generate with plain text, or put a chat_template.jinja there"
            )
        name = "tool_use" if tools is not None and "tool_use" in self._sources else "default"
        if name not in self._sources:
            names = ", ".join(sorted(self._sources))
            raise TokenizerError(f"{self._origin} has chat templates ({names}) but none is named default: rename one")
        return name

    def _compile(self, name: str) -> jinja2.Template:
        if name not in self._compiled:
            try:
                self._compiled[name] = self._environment.from_string(self._sources[name])
            except jinja2.TemplateSyntaxError as error:
                message = " ".join(str(error.message).split())
                raise TokenizerError(
                    f"the chat template of {self._origin} cannot be parsed (line {error.lineno}: {message}): "
                    "correct it, or use generate with plain text"
                ) from error
        return self._compiled[name]

    def _formats(self, name: str) -> ContentFormats:
        if name not in self._content_formats:
            self._content_formats[name] = _content_formats(self._compile(name), self._special_tokens)
        return self._content_formats[name]


def checked_template(given: str) -> str:
    """Return the source of a template, passed as it is or by file name, after compiling it."""
    template = ChatTemplate.given(given, {}).text
    assert template is not None
    return template


def _read_given(given: str) -> str:
    """Return the source of a template that is passed as it is or by file name."""
    if "{" in given or "\n" in given:
        return given
    path = Path(given)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        message = f"--chat-template: cannot read {given}: {reason}; give a file, or a Jinja template"
        raise ConfigError(message) from error
    if "{" not in text:
        raise ConfigError(f"--chat-template: {given} is no Jinja template: it prints no message")
    return text


def _read_sources(directory: Path) -> dict[str, str]:
    """Return templates by name, from the first file that has any."""
    source = read_text(directory / "chat_template.jinja")
    extra = sorted((directory / "additional_chat_templates").glob("*.jinja"))
    if source is not None or extra:
        sources = {path.name.removesuffix(".jinja"): read_text(path) or "" for path in extra}
        return sources if source is None else {"default": source, **sources}
    for name in ("tokenizer_config.json", "chat_template.json"):
        path = directory / name
        value = read_json_object(path).get("chat_template")
        if value is not None:
            return _sources_from_json(path, value)
    return {}


def _sources_from_json(path: Path, value: object) -> dict[str, str]:
    if isinstance(value, str):
        return {"default": value}
    if isinstance(value, list):
        value = {item.get("name"): item.get("template") for item in value if isinstance(item, dict)}
    if isinstance(value, dict) and value and all(isinstance(text, str) for pair in value.items() for text in pair):
        return value
    raise TokenizerError(f"chat_template in {path} must be a string or a list of objects with name and template")


def _check_messages(messages: object) -> None:
    if not isinstance(messages, (list, tuple)):
        raise InvalidParameter("messages", messages, "it must be a list of messages")
    if not messages:
        raise InvalidParameter("messages", messages, "give at least one message")
    for index, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise InvalidParameter(f"messages[{index}]", message, "each message must be an object with a role")
        role = message.get("role")
        if not isinstance(role, str) or not role:
            raise InvalidParameter(f"messages[{index}].role", role, "it must be a string such as user or assistant")
        _check_content(f"messages[{index}].content", message.get("content"))


def _check_content(name: str, content: object) -> None:
    if content is None or isinstance(content, str):
        return
    if not isinstance(content, (list, tuple)):
        raise InvalidParameter(name, content, "it must be a string or a list of parts")
    for index, part in enumerate(content):
        if not isinstance(part, Mapping):
            raise InvalidParameter(f"{name}[{index}]", part, "each part must be an object with a type")
        if part.get("type") == "text" and not isinstance(part.get("text"), str):
            raise InvalidParameter(f"{name}[{index}].text", part.get("text"), "it must be a string")


def _check_tools(tools: object) -> None:
    if tools is None:
        return
    if not isinstance(tools, (list, tuple)) or not all(isinstance(tool, Mapping) for tool in tools):
        raise InvalidParameter("tools", tools, "it must be a list of objects, each the JSON schema of a function")


def _content_formats(template: jinja2.Template, special_tokens: Mapping[str, str]) -> ContentFormats:
    """Probe the formats: a template that prints parts like the plain text accepts both."""

    def probe(content: object) -> str:
        context = {
            "documents": None,
            **special_tokens,
            "messages": [{"role": "user", "content": content}],
            "tools": None,
            "add_generation_prompt": False,
        }
        try:
            return _run(template, context)
        except RequestError:
            return ""

    from_text, from_parts = probe(_PROBE), probe([{"type": "text", "text": _PROBE}])
    if _PROBE in from_text:
        return ContentFormats(text=True, parts=from_parts == from_text)
    if _PROBE in from_parts:
        return ContentFormats(text=False, parts=True)
    # Neither was printed, so the probe is inconclusive; most templates take text.
    return ContentFormats(text=True, parts=False)


def _in_format(messages: Sequence[Message], formats: ContentFormats) -> list[dict[str, Any]]:
    """Return copies of the messages, with their content in a format that the template accepts."""
    prepared = []
    for message in messages:
        copy = dict(message)
        content = copy.get("content")
        if isinstance(content, str) and not formats.text:
            copy["content"] = [{"type": "text", "text": content}]
        elif isinstance(content, (list, tuple)) and not formats.parts and _only_text(content):
            copy["content"] = "".join(part["text"] for part in content)
        prepared.append(copy)
    return prepared


def _only_text(parts: Sequence[Mapping[str, Any]]) -> bool:
    return all(part.get("type") == "text" for part in parts)


def _open_ended(messages: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], str]:
    """Mark the end of the last message, so that what the template writes after it can be cut off."""
    *earlier, final = messages
    content: Any = final.get("content")
    if isinstance(content, str):
        return [*earlier, {**final, "content": content + _CONTINUE_HERE}], content
    parts = [dict(part) for part in content or ()]
    for part in reversed(parts):
        text = part.get("text")
        if isinstance(text, str):
            part["text"] = text + _CONTINUE_HERE
            return [*earlier, {**final, "content": parts}], text
    raise InvalidParameter("continue_final_message", True, "the final message has no text to continue")


def _cut_open(rendered: str, final_text: str) -> str:
    end = rendered.rfind(_CONTINUE_HERE.strip())
    if end < 0 or final_text.strip() not in rendered:
        raise RequestError("the chat template does not print the final message as it is, so it cannot be continued")
    text = rendered[:end]
    return text if rendered.startswith(_CONTINUE_HERE, end) else text.rstrip()


def _run(template: jinja2.Template, context: Mapping[str, Any]) -> str:
    try:
        return template.render(context)
    # A template is a program: on unexpected messages it can fail with any exception.
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise RequestError(f"the chat template refused the messages: {reason}") from error


def _environment(clock: Callable[[], datetime]) -> jinja2.Environment:
    """Return the environment that transformers sets up, which templates are written for."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda pattern: clock().strftime(pattern)
    return environment


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes for HTML, which is not what models were trained on.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


class _GenerationBlock(Extension):
    """`{% generation %}` marks the assistant's words for training; here they are printed like any others."""

    tags = {"generation"}  # noqa: RUF012 - so declared by jinja2

    def parse(self, parser: Parser) -> list[nodes.Node]:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        # A scope of its own, as in training: variables set inside stay inside.
        return [nodes.Scope(body).set_lineno(line)]
