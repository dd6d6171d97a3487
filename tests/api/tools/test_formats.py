"""A model's chat template tells how it writes calls."""

import json

import pytest

from archerfish.api.tools import FORMATS, choose_format, find_format
from archerfish.box import models_in_box
from archerfish.errors import ConfigError

QWEN = """{%- if tools %}For each function call, return a json object within <tool_call></tool_call> XML tags:
<tool_call>\\n{\\"name\\": <function-name>, \\"arguments\\": <args-json-object>}\\n</tool_call>{%- endif %}"""
QWEN_CODER = (
    "{%- if tools %}<tool_call>\\n<function=example>\\n<parameter=x>\\n1\\n</parameter>\\n</function>{%- endif %}"
)
LLAMA_31 = """{%- if tools is not none %}Respond in the format {"name": function name, "parameters": dictionary}
{%- endif %}{{- "<|python_tag|>" + tool_call.name + ".call(" }}"""
LLAMA_32 = (
    """{%- if tools is not none %}Respond in the format {"name": function name, "parameters": dictionary}{%- endif %}"""
)
MISTRAL = """{{- "[AVAILABLE_TOOLS] " }}{%- for tool in tools %}...{{- "[TOOL_CALLS] [" }}"""
MISTRAL_ARGS = """{{- "[AVAILABLE_TOOLS]" }}{{ tools | tojson }}{{- "[TOOL_CALLS]" + name + "[ARGS]" + arguments }}"""
PLAIN = "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>{% endfor %}"


@pytest.mark.parametrize(
    ("model_type", "template", "special_tokens", "name"),
    [
        ("qwen2", QWEN, (), "hermes"),
        # A Llama that was taught another format.
        ("llama", QWEN, ("<|python_tag|>",), "hermes"),
        ("llama", LLAMA_31, (), "llama3"),
        ("llama", LLAMA_32, ("<|eot_id|>", "<|python_tag|>"), "llama3"),
        ("mistral", MISTRAL, ("[TOOL_CALLS]", "[ARGS]"), "mistral"),
        ("mistral3", MISTRAL_ARGS, (), "mistral-args"),
        ("mistral", "{{ tools }}", ("[TOOL_CALLS]",), "mistral"),
        ("qwen3", "{{ tools }}", (), "hermes"),
        ("llama", LLAMA_32, (), None),
        ("llama", "{{ tools }}", (), None),
        ("qwen3_moe", QWEN_CODER, (), None),
        ("qwen2", PLAIN, ("<tool_call>",), None),
        ("qwen2", "{# detools #}", (), None),
        ("qwen2", None, ("<tool_call>",), None),
    ],
)
def test_format_is_chosen(model_type: str, template: str | None, special_tokens: tuple[str, ...], name: str) -> None:
    chosen = choose_format(model_type, template, special_tokens)
    assert (chosen and chosen.name) == name


def test_the_model_in_the_box_has_its_own() -> None:
    directory = models_in_box()["perch"]
    template = json.loads((directory / "tokenizer_config.json").read_text())["chat_template"]
    assert choose_format("llama", template) is FORMATS["perch"]


def test_formats_have_names() -> None:
    for name, tool_format in FORMATS.items():
        assert find_format(name) is tool_format
    for theirs, ours in {"llama3_json": "llama3", "llama4_json": "llama3", "qwen25": "hermes"}.items():
        assert find_format(theirs) is FORMATS[ours]
        assert tool_format.name == name
    with pytest.raises(ConfigError, match="no tool format 'xml': choose one of perch, hermes"):
        find_format("xml")
