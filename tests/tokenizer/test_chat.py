"""Chat templates render as in transformers; broken templates and messages are refused with a reason."""

import json
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from archerfish.errors import InvalidParameter, RequestError, TokenizerError
from archerfish.tokenizer import Tokenizer
from archerfish.tokenizer.chat import ChatTemplate

LLAMA = """\
{{- bos_token }}
{%- if tools is not none %}
    {{- '<|start_header_id|>system<|end_header_id|>\\n\\nTools:\\n' }}
    {%- for tool in tools %}
        {{- tool | tojson(indent=4) }}
        {{- "\\n\\n" }}
    {%- endfor %}
    {{- '<|eot_id|>' }}
{%- endif %}
{%- for message in messages %}
    {%- set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + message['content'] | trim %}
    {{- content + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""

CHATML = """\
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
    {{- "# Tools\\n<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools><|im_end|>\\n" }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- set state = namespace(num_users=0) %}
{%- for message in messages %}
    {%- if loop.first and message.role == 'system' %}{%- continue %}{%- endif %}
    {%- if message.role == 'user' %}{%- set state.num_users = state.num_users + 1 %}{%- endif %}
    {{- '<|im_start|>' + message.role }}
    {%- if message.content %}
        {%- generation %}
        {{- '\\n' + message.content }}
        {%- endgeneration %}
    {%- endif %}
    {%- for call in message.tool_calls or [] %}
        {{- '\\n<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
        {{- call.function.arguments | tojson }}
        {{- '}\\n</tool_call>' }}
    {%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
{%- endif %}
{{- '' if documents is none else documents | length }}{{ state.num_users }}
"""

MISTRAL = """\
{{ bos_token }}{% for message in messages %}
{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}
{% endif %}
{% if message['role'] == 'user' %}
    {{ ' [INST] ' + message['content'] + ' [/INST]' }}
{% elif message['role'] == 'assistant' %}
    {{ ' ' + message['content'] + ' ' + eos_token }}
{% else %}
{{ raise_exception('Only user and assistant roles are supported!') }}
{% endif %}
{% endfor %}
"""

PARTS = """\
{% for message in messages %}{{ message.role }}:
{%- for part in message.content %}
    {%- if part.type == 'text' %}{{ part.text }}{% else %}<{{ part.type }}>{% endif %}
{% endfor %}
;{% endfor %}"""

TEXT_OR_PARTS = """\
{% for message in messages %}{% if message.content is string %}{{ message.content }}
{% else %}{% for part in message.content %}{% if not loop.first %}|{% endif %}{{ part.text }}{% endfor %}

{% endif %}{% endfor %}"""

TEMPLATES = {"llama": LLAMA, "chatml": CHATML, "mistral": MISTRAL}
SPECIAL_TOKENS = {"bos_token": "<|begin|>", "eos_token": "<|end|>"}

USER: dict[str, Any] = {"role": "user", "content": "  Where is <Öland> & “Gotland”? 在哪里\n"}
ASSISTANT: dict[str, Any] = {"role": "assistant", "content": "In the Baltic.  "}
SYSTEM: dict[str, Any] = {"role": "system", "content": "You are an archerfish."}
CALL: dict[str, Any] = {
    "role": "assistant",
    "content": "",
    "tool_calls": [{"type": "function", "function": {"name": "find", "arguments": {"wo": "Öland's <b>"}}}],
}
CONVERSATIONS: dict[str, list[dict[str, Any]]] = {
    "one": [USER],
    "three": [USER, ASSISTANT, USER],
    "system": [SYSTEM, USER, ASSISTANT, {"role": "user", "content": ""}],
    "call": [USER, CALL, {"role": "tool", "content": "56° N"}, ASSISTANT],
}
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": "find", "description": "Find <a> place & 'more' 島", "parameters": {}}},
    {"type": "function", "function": {"name": "swim", "parameters": {"type": "object", "required": []}}},
]


@pytest.fixture(scope="module")
def transformers_tokenizer(byte_level_directory: Path) -> Any:
    import transformers

    fast: Any = transformers.PreTrainedTokenizerFast
    return fast(tokenizer_file=str(byte_level_directory / "tokenizer.json"), **SPECIAL_TOKENS)


def chat(source: str, **special_tokens: str) -> ChatTemplate:
    return ChatTemplate({"default": source}, special_tokens or SPECIAL_TOKENS)


def combinations() -> Iterator[tuple[str, str]]:
    for template in TEMPLATES:
        for conversation in CONVERSATIONS:
            if template != "mistral" or conversation in ("one", "three"):
                yield template, conversation


@pytest.mark.parametrize(("template", "conversation"), list(combinations()))
@pytest.mark.parametrize("tools", [None, TOOLS, []], ids=["none", "two", "empty"])
def test_renders_as_in_transformers(
    transformers_tokenizer: Any, template: str, conversation: str, tools: list[dict[str, Any]] | None
) -> None:
    source, messages = TEMPLATES[template], CONVERSATIONS[conversation]
    choices: list[dict[str, Any]] = [
        {},
        {"enable_thinking": False},
        {"bos_token": "<other>"},
        {"documents": [{"text": "a"}]},
    ]
    for variables in choices:
        for prompt in (True, False):
            expected = transformers_tokenizer.apply_chat_template(
                messages,
                chat_template=source,
                tools=tools,
                tokenize=False,
                add_generation_prompt=prompt,
                **variables,
            )
            rendered = chat(source).render(messages, tools=tools, add_generation_prompt=prompt, **variables)
            assert rendered == expected
    assert chat(source).render(messages, tools=tools) == chat(source).render(
        messages, tools=tools, add_generation_prompt=True
    )


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("final", ["In the", "In the ", " In the\n", ""])
def test_continues_the_final_message_as_in_transformers(transformers_tokenizer: Any, template: str, final: str) -> None:
    source, messages = TEMPLATES[template], [USER, {"role": "assistant", "content": final}]
    expected = transformers_tokenizer.apply_chat_template(
        messages, chat_template=source, tokenize=False, continue_final_message=True
    )
    rendered = chat(source).render(messages, continue_final_message=True)
    assert rendered == expected
    assert rendered.rstrip().endswith(final.strip())
    assert messages[1]["content"] == final


def test_continues_the_last_text_part(transformers_tokenizer: Any) -> None:
    parts = [{"type": "text", "text": "In"}, {"type": "text", "text": " the "}, {"type": "image"}]
    messages = [{"role": "assistant", "content": parts}]
    expected = transformers_tokenizer.apply_chat_template(
        messages, chat_template=PARTS, tokenize=False, continue_final_message=True
    )
    assert chat(PARTS).render(messages, continue_final_message=True) == expected == "assistant:In the "


def test_rendered_prompt_encodes_as_in_transformers(transformers_tokenizer: Any, byte_level: Tokenizer) -> None:
    expected = transformers_tokenizer.apply_chat_template(
        [USER], chat_template=LLAMA, add_generation_prompt=True, return_dict=False
    )
    assert byte_level.encode(chat(LLAMA).render([USER]), add_special_tokens=False) == expected


def test_special_tokens_that_are_missing_render_as_nothing() -> None:
    assert (
        chat("{{ bos_token }}{{ messages[0].content }}{{ eos_token }}", eos_token="</s>").render(
            [{"role": "user", "content": "fish"}]
        )
        == "fish</s>"
    )


def test_time_comes_from_the_clock() -> None:
    template = ChatTemplate(
        {"default": "{{ strftime_now('%d %b %Y') }}"}, {}, clock=lambda: datetime(2024, 7, 26, 12, 30)
    )
    assert template.render([USER]) == "26 Jul 2024"


def test_set_in_a_generation_block_stays_inside() -> None:
    source = "{% set x = 1 %}{% generation %}{% set x = 2 %}{{ x }}{% endgeneration %}{{ x }}"
    assert chat(source).render([USER]) == "21"


# Content


def parts(*texts: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text} for text in texts]


@pytest.mark.parametrize("template", TEMPLATES)
def test_text_parts_are_joined_for_templates_that_take_text(template: str) -> None:
    source = TEMPLATES[template]
    expected = chat(source).render([{"role": "user", "content": "Where is Öland?"}])
    assert chat(source).render([{"role": "user", "content": parts("Where is", " Öland", "?")}]) == expected
    assert chat(source).render([{"role": "user", "content": tuple(parts("Where is Öland?"))}]) == expected


def test_text_becomes_a_part_for_templates_that_take_parts() -> None:
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "Where?"},
        {"role": "assistant", "content": parts("Here", "!")},
    ]
    assert chat(PARTS).render(messages) == "user:Where?;assistant:Here!;"


def test_templates_that_take_both_get_what_was_sent() -> None:
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "Where?"},
        {"role": "assistant", "content": parts("Here", "!")},
    ]
    assert chat(TEXT_OR_PARTS).render(messages) == "Where?\nHere|!\n"


def test_parts_that_are_not_text_are_left_to_the_template() -> None:
    content = [{"type": "image"}, *parts("What is this?")]
    assert chat(PARTS).render([{"role": "user", "content": content}]) == "user:<image>What is this?;"
    assert chat("{{ messages[0].content | length }}").render([{"role": "user", "content": content}]) == "2"


def test_message_without_content() -> None:
    source = "{% for message in messages %}{{ message.role }}={{ message.content }};{% endfor %}"
    assert chat(source).render([{"role": "user"}, {"role": "assistant", "content": None}]) == "user=;assistant=None;"


def test_messages_are_not_changed() -> None:
    message = {"role": "user", "content": parts("a", "b")}
    before = json.dumps(message)
    chat(LLAMA).render([message])
    assert json.dumps(message) == before


# Where templates come from


def write(directory: Path, name: str, content: Any) -> None:
    path = directory / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")


def render(directory: Path, tools: list[dict[str, Any]] | None = None) -> str:
    return ChatTemplate.load(directory, SPECIAL_TOKENS).render([USER], tools=tools)


def test_sources_in_order(tmp_path: Path) -> None:
    assert not ChatTemplate.load(tmp_path, {}).is_present
    write(tmp_path, "chat_template.json", {"chat_template": "from chat_template.json"})
    assert render(tmp_path) == "from chat_template.json"
    write(tmp_path, "tokenizer_config.json", {"chat_template": None})
    assert render(tmp_path) == "from chat_template.json"
    write(tmp_path, "tokenizer_config.json", {"chat_template": "from tokenizer_config.json"})
    assert render(tmp_path) == "from tokenizer_config.json"
    write(tmp_path, "chat_template.jinja", "from chat_template.jinja: ü")
    assert render(tmp_path) == "from chat_template.jinja: ü"
    assert ChatTemplate.load(tmp_path, {}).is_present


def test_template_for_tools(tmp_path: Path) -> None:
    named = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "with tools"}]
    write(tmp_path, "tokenizer_config.json", {"chat_template": named})
    assert (render(tmp_path), render(tmp_path, TOOLS), render(tmp_path, [])) == ("plain", "with tools", "with tools")
    write(tmp_path, "chat_template.jinja", "file")
    assert (render(tmp_path), render(tmp_path, TOOLS)) == ("file", "file")
    write(tmp_path, "additional_chat_templates/tool_use.jinja", "file with tools")
    assert (render(tmp_path), render(tmp_path, TOOLS)) == ("file", "file with tools")


def test_tokenizer_has_the_template(byte_level_directory: Path, tmp_path: Path) -> None:
    plain = Tokenizer.load(byte_level_directory)
    assert not plain.has_chat_template
    for name in ("tokenizer.json", "tokenizer_config.json"):
        write(tmp_path, name, (byte_level_directory / name).read_text(encoding="utf-8"))
    write(tmp_path, "chat_template.jinja", "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}")
    loaded = Tokenizer.load(tmp_path)
    assert loaded.has_chat_template
    assert loaded.chat_template.render([{"role": "user", "content": "a"}]) == "<|begin|>a<|end|>"


# What is refused


def test_no_template(byte_level: Tokenizer, byte_level_directory: Path) -> None:
    with pytest.raises(TokenizerError) as caught:
        byte_level.chat_template.render([USER])
    assert f"{byte_level_directory} has no chat template: use generate with plain text" in str(caught.value)


def test_no_default_template(tmp_path: Path) -> None:
    write(tmp_path, "tokenizer_config.json", {"chat_template": [{"name": "rag", "template": "a"}]})
    with pytest.raises(TokenizerError, match=r"has chat templates \(rag\) but none is named default"):
        render(tmp_path)


@pytest.mark.parametrize("value", [7, [], [7], [{"name": "default"}], {"default": 7}, {}])
def test_template_of_a_wrong_type(tmp_path: Path, value: Any) -> None:
    write(tmp_path, "tokenizer_config.json", {"chat_template": value})
    with pytest.raises(TokenizerError, match=r"chat_template in .*tokenizer_config\.json must be a string or a list"):
        render(tmp_path)


def test_template_that_is_not_text(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff{{ x }}")
    with pytest.raises(TokenizerError, match=r"chat_template\.jinja is not UTF-8 text"):
        render(tmp_path)


@pytest.mark.parametrize("source", ["a\n{% for %}", "a\n{% if x %}", "a\n{{ x | nothing }}", "a\n{% unknown %}"])
def test_template_with_a_syntax_error(source: str) -> None:
    template = chat(source)
    assert template.is_present
    with pytest.raises(
        TokenizerError, match=r"the chat template of the model cannot be parsed \(line 2: .*\): correct"
    ):
        template.render([USER])


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (MISTRAL, "Only user and assistant roles are supported!|roles must alternate"),
        ("{{ messages[0].nothing.at_all }}", "has no attribute 'nothing'"),
        ("{{ messages[0].content + 1 }}", "concatenate"),
        ("{{ 1 / 0 }}", "division by zero"),
        ("{{ raise_exception('two\nlines') }}", "two lines"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ strftime_now.__globals__['json'] }}", "unsafe"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recursion"),
    ],
)
def test_template_that_refuses(source: str, reason: str) -> None:
    with pytest.raises(RequestError, match=f"^the chat template refused the messages: .*({reason})") as caught:
        chat(source).render([SYSTEM, USER])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("messages", "name"),
    [
        (None, "messages"),
        ("Where?", "messages"),
        ({"role": "user", "content": "a"}, "messages"),
        ([], "messages"),
        (["Where?"], "messages[0]"),
        ([USER, None], "messages[1]"),
        ([{"content": "a"}], "messages[0].role"),
        ([{"role": "", "content": "a"}], "messages[0].role"),
        ([{"role": 7, "content": "a"}], "messages[0].role"),
        ([{"role": "user", "content": 7}], "messages[0].content"),
        ([{"role": "user", "content": {"type": "text", "text": "a"}}], "messages[0].content"),
        ([{"role": "user", "content": ["a"]}], "messages[0].content[0]"),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0].text"),
    ],
)
def test_malformed_messages(messages: Any, name: str) -> None:
    with pytest.raises(InvalidParameter) as caught:
        chat(LLAMA).render(messages)
    assert caught.value.name == name


@pytest.mark.parametrize("tools", ["find", {"name": "find"}, [len]])
def test_malformed_tools(tools: Any) -> None:
    with pytest.raises(InvalidParameter, match="tools"):
        chat(LLAMA).render([USER], tools=tools)


def test_messages_as_a_variable() -> None:
    with pytest.raises(InvalidParameter, match="messages"):
        chat(LLAMA).render([USER], messages=[SYSTEM])


@pytest.mark.parametrize("content", [None, [], [{"type": "image"}]])
def test_nothing_to_continue(content: Any) -> None:
    with pytest.raises(InvalidParameter, match="the final message has no text to continue"):
        chat(PARTS).render([{"role": "assistant", "content": content}], continue_final_message=True)


@pytest.mark.parametrize("source", ["{{ messages[0].content | upper }}", "{{ messages | length }}"])
def test_final_message_that_is_not_printed(source: str) -> None:
    with pytest.raises(RequestError, match="does not print the final message as it is"):
        chat(source).render([ASSISTANT], continue_final_message=True)
