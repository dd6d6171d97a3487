"""Formats in which models mark their reasoning, and the choice of one for a model."""

from dataclasses import dataclass

from archerfish.errors import ConfigError

OFF = "none"
"""The name that asks for no format: reasoning stays in the content, with its tags."""


@dataclass(frozen=True, slots=True)
class ReasoningFormat:
    """One way to mark reasoning."""

    name: str
    start: str = "<think>"
    end: str = "</think>"
    starts_untagged: bool = False
    """Whether an answer begins within reasoning where neither the prompt nor the answer has the start tag."""


_ALL = (
    ReasoningFormat("think"),
    ReasoningFormat("deepseek_r1", starts_untagged=True),
    ReasoningFormat("mistral", "[THINK]", "[/THINK]"),
    ReasoningFormat("seed_oss", "<seed:think>", "</seed:think>"),
)
FORMATS: dict[str, ReasoningFormat] = {one.name: one for one in _ALL}
"""By name, in the order in which a template is asked for their tags."""

_ALIASES = {
    **dict.fromkeys(("qwen3", "glm45", "deepseek_v3", "holo2", "olmo3"), "think"),
    **dict.fromkeys(("step3", "minimax_m2"), "deepseek_r1"),
}
"""Other names that these have in vLLM."""


def find_format(name: str) -> ReasoningFormat | None:
    """The format a user named; None for "none"."""
    if name == OFF:
        return None
    known = FORMATS.get(_ALIASES.get(name, name))
    if known is None:
        raise ConfigError(
            f"there is no reasoning parser {name!r}: choose one of {', '.join((*FORMATS, *_ALIASES))}, or {OFF}"
        )
    return known


def choose_format(chat_template: str | None) -> ReasoningFormat | None:
    """Return the reasoning format of a chat template; None if it shows no reasoning."""
    return next((one for one in _ALL if chat_template is not None and one.end in chat_template), None)
