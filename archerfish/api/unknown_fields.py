"""What to do about a field that an endpoint does not know: clients come from other services, and mistype names."""

from collections.abc import Collection
from difflib import get_close_matches

_LONGEST_NAME = 64

_LENGTHS = ("max_tokens", "max_output_tokens")
_THINKING = ("reasoning_effort", "chat_template_kwargs", "reasoning", "thinking")
_SYSTEM = ("instructions", "system", "messages")

_INSTEAD: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("max_new_tokens", "n_predict", "num_predict", "max_length"), _LENGTHS),
    **dict.fromkeys(("max_completion_tokens", "max_output_tokens", "max_tokens"), _LENGTHS),
    **dict.fromkeys(("json_schema", "regex", "choice", "grammar", "format"), ("structured_outputs",)),
    **dict.fromkeys(("json_object", "guided_json_object", "structural_tag"), ("structured_outputs",)),
    **dict.fromkeys(("thinking", "reasoning", "reasoning_effort"), _THINKING),
    "enable_thinking": ("chat_template_kwargs", *_THINKING),
    **dict.fromkeys(("system", "instructions", "system_prompt"), _SYSTEM),
    **dict.fromkeys(("stop_sequences", "stop"), ("stop", "stop_sequences")),
    "documents": ("chat_template_kwargs",),
    "functions": ("tools",),
    "function_call": ("tool_choice",),
    "repeat_penalty": ("repetition_penalty",),
    "typical_p": ("min_p",),
    "do_sample": ("temperature",),
    "messages": ("input", "prompt"),
    "prompt": ("messages", "input"),
    "input": ("prompt", "messages"),
    "thinking_budget": ("thinking_token_budget", "thinking"),
}
"""Fields that do the same or the like, the first of them that an endpoint has."""

_NOT_HERE = {
    "guided_decoding_backend": "there is one only",
    "guided_whitespace_pattern": "JSON is written without free space",
    "chat_template": "it is given when the service starts: --chat-template",
    "use_beam_search": "there is no beam search",
    "length_penalty": "there is no beam search",
    "early_stopping": "there is no beam search",
    "truncate_prompt_tokens": "prompts are not cut; send one that fits",
}


def remedy_for(name: str, known: Collection[str]) -> str:
    """What to do about an unknown field of a body that could have had the known ones."""
    if name in _NOT_HERE:
        return f"leave it out: {_NOT_HERE[name]}"
    instead = [other for other in _INSTEAD.get(name, ()) if other in known]
    if not instead and len(name) <= _LONGEST_NAME:
        instead = get_close_matches(name, known, n=1, cutoff=0.8)
    return f"did you mean {instead[0]}?" if instead else "leave it out"
