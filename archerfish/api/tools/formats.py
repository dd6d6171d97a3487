"""Formats in which models write calls, and the choice of one for a model."""

import re
import secrets
import string
from collections.abc import Collection
from dataclasses import dataclass

from archerfish.errors import ConfigError

_LETTERS_AND_DIGITS = string.ascii_letters + string.digits
_KNOWS_TOOLS = re.compile(r"\btools\b")


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolFormat:
    """One way to write calls, as the model was trained to."""

    name: str
    start: str
    """The marker that announces calls."""
    call: str
    """One whole call, with $name and $arguments where they go."""
    openings: tuple[str, ...] = ("",)
    """What may stand before the first call; one of them must."""
    between: str = ""
    ending: str = ""
    """Text that follows the last call."""
    closers: tuple[str, ...] = ()
    """Texts that belong to a call where they follow it: its own end, or the end of the turn."""
    may_be_bare: bool = False
    """Whether an answer may begin with a call that no marker announces."""
    names_come_first: bool = False
    """Whether a call may be a plain name followed by its arguments, instead of one object with both."""
    inner_markers: tuple[str, ...] = ()
    """Markers within a call."""
    signs: tuple[str, ...]
    """A chat template that has all of these writes calls this way..."""
    other_signs: tuple[str, ...] = ()
    """... unless it has one of these."""
    model_types: tuple[str, ...] = ()
    """Models that are known to write calls this way, for templates that show none."""
    id_length: int | None = None
    """Templates of some models take ids only if they have so many letters and digits."""

    @property
    def markers(self) -> tuple[str, ...]:
        """Texts that may be tokens of their own. Where these are special tokens, the text must be read with them."""
        return (self.start, *self.inner_markers, *self.closers)

    def new_id(self) -> str:
        """A name for a call that no other has."""
        letters = "".join(secrets.choice(_LETTERS_AND_DIGITS) for _ in range(self.id_length or 24))
        return letters if self.id_length else f"call_{letters}"


_ALL = (
    ToolFormat(
        name="perch",
        start="<|tool_call|>",
        call='<|tool_call|>{"name": "$name", "arguments": $arguments}',
        closers=("<|end|>",),
        signs=("<|tool_call|>",),
    ),
    ToolFormat(
        name="hermes",
        start="<tool_call>",
        call='<tool_call>\n{"name": "$name", "arguments": $arguments}\n</tool_call>',
        between="\n",
        closers=("</tool_call>", "<|im_end|>"),
        signs=("<tool_call>",),
        # Models that put something else than JSON between the same markers.
        other_signs=("<function=", "<parameter=", "<arg_key>"),
        model_types=("qwen2", "qwen2_moe", "qwen3", "qwen3_moe"),
    ),
    # Templates of newer models have a marker for the arguments, so they are recognized before older ones.
    ToolFormat(
        name="mistral-args",
        start="[TOOL_CALLS]",
        call="[TOOL_CALLS]$name[ARGS]$arguments",
        closers=("</s>",),
        names_come_first=True,
        inner_markers=("[ARGS]", "[CALL_ID]"),
        signs=("[TOOL_CALLS]", "[ARGS]"),
        id_length=9,
    ),
    ToolFormat(
        name="mistral",
        start="[TOOL_CALLS]",
        call='{"name": "$name", "arguments": $arguments}',
        openings=("[TOOL_CALLS] [", "[TOOL_CALLS]["),
        between=", ",
        ending="]",
        closers=("</s>",),
        names_come_first=True,
        inner_markers=("[ARGS]", "[CALL_ID]"),
        signs=("[TOOL_CALLS]",),
        model_types=("mistral", "mixtral"),
        id_length=9,
    ),
    ToolFormat(
        name="llama3",
        start="<|python_tag|>",
        call='{"name": "$name", "parameters": $arguments}',
        openings=("", "<|python_tag|>"),
        between="; ",
        closers=("<|eom_id|>", "<|eot_id|>"),
        may_be_bare=True,
        signs=("<|python_tag|>",),
        model_types=("mllama",),
    ),
)

FORMATS: dict[str, ToolFormat] = {tool_format.name: tool_format for tool_format in _ALL}
"""By name, in the order in which a template is asked for their signs."""

_ALIASES = {**dict.fromkeys(("llama3_json", "llama4_json"), "llama3"), **dict.fromkeys(("qwen", "qwen25"), "hermes")}
"""Other names that these have in vLLM and SGLang."""


def find_format(name: str) -> ToolFormat:
    """Return the format that a user named, also as vLLM and SGLang call it."""
    known = FORMATS.get(_ALIASES.get(name, name))
    if known is None:
        raise ConfigError(f"there is no tool format {name!r}: choose one of {', '.join((*FORMATS, *_ALIASES))}")
    return known


def choose_format(
    model_type: str, chat_template: str | None, special_tokens: Collection[str] = ()
) -> ToolFormat | None:
    """Return the call format of a chat template; None if it has no tools, or shows calls in an unknown format.

    The template's text is asked first; then which markers the tokenizer has, for some templates show only the tools and
    none of the calls; then what models of its type do.
    """
    if chat_template is None or not _KNOWS_TOOLS.search(chat_template):
        return None
    possible = [f for f in _ALL if not any(sign in chat_template for sign in f.other_signs)]
    for tool_format in possible:
        if all(sign in chat_template for sign in tool_format.signs):
            return tool_format
    for tool_format in possible:
        if all(sign in special_tokens for sign in tool_format.signs):
            return tool_format
    for tool_format in possible:
        if model_type in tool_format.model_types:
            return tool_format
    return None
