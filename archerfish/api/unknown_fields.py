"""What becomes of fields that an endpoint does not have: clients come from other services, and mistype names.

Fields of OpenAI's and vLLM's APIs that ask for nothing pass. Those that ask for what cannot be done are refused with
what to use instead, and unknown names with the nearest known one.
"""

from collections.abc import Collection
from difflib import get_close_matches
from typing import Any, NamedTuple

_LONGEST_NAME = 64


class UnsupportedField(NamedTuple):
    """A field of OpenAI's or vLLM's API that is supported by no endpoint, or not by all of them."""

    instead: str
    """What to do instead: the end of the error message."""
    neutral: tuple[Any, ...] = ()
    """Values besides null that ask for nothing."""


_BEAMS = "use n and best_of, or LLM.beam_search offline"
_TEXT_ONLY = "this model reads text only; leave it out"
_TOKEN_IDS = "replies hold text; send it to /tokenize for its token ids"
_CACHE = "prefixes stay cached as long as there is space; leave it out"

_UNSUPPORTED: dict[str, UnsupportedField] = {
    # OpenAI's.
    "audio": UnsupportedField("this model writes text only; leave it out"),
    "function_call": UnsupportedField("use tool_choice in /v1/chat/completions", ("none", "auto")),
    "functions": UnsupportedField("use tools in /v1/chat/completions", ([],)),
    "include_obfuscation": UnsupportedField("events are not padded; leave it out", (False,)),
    "moderation": UnsupportedField("nothing is moderated here; leave it out"),
    "prediction": UnsupportedField("predictions are not used here; leave it out"),
    "prompt_cache_options": UnsupportedField(_CACHE, ({},)),
    "prompt_cache_retention": UnsupportedField(_CACHE, ("in_memory", "in-memory")),
    "store": UnsupportedField("only responses (/v1/responses) are stored; leave it out", (False,)),
    "suffix": UnsupportedField("the engine only continues prompts and fills no gaps; leave it out", ("",)),
    "web_search_options": UnsupportedField("there is no web search; leave it out"),
    # vLLM's: what is written, and how.
    "early_stopping": UnsupportedField(_BEAMS, (False,)),
    "length_penalty": UnsupportedField(_BEAMS, (1,)),
    "use_beam_search": UnsupportedField(_BEAMS, (False,)),
    "logits_processors": UnsupportedField("use logit_bias, allowed_token_ids, bad_words or structured_outputs", ([],)),
    "repetition_detection": UnsupportedField("use repetition_penalty or frequency_penalty"),
    "disable_fallback": UnsupportedField("llguidance compiles every form; leave it out", (False,)),
    "guided_decoding_backend": UnsupportedField("llguidance compiles every form; leave it out", ("auto", "guidance")),
    "guided_whitespace_pattern": UnsupportedField("JSON is written on one line; leave it out, or use a grammar"),
    "whitespace_pattern": UnsupportedField("JSON is written on one line; leave it out, or use a grammar"),
    # vLLM's: prompts.
    "chat_template": UnsupportedField("it is given when the service starts: --chat-template"),
    "documents": UnsupportedField('use chat_template_kwargs: {"documents": [...]}', ([],)),
    "media_io_kwargs": UnsupportedField(_TEXT_ONLY, ({},)),
    "mm_processor_kwargs": UnsupportedField(_TEXT_ONLY, ({},)),
    "prompt_embeds": UnsupportedField("a prompt is text or token ids; use prompt"),
    "truncation_side": UnsupportedField("truncate_prompt_tokens keeps the end of a prompt; leave it out", ("left",)),
    # vLLM's: replies and the rest.
    "echo": UnsupportedField("use it in /v1/completions", (False,)),
    "embed_dtype": UnsupportedField("embeddings are float32; leave it out", ("float32",)),
    "endianness": UnsupportedField("base64 embeddings are little-endian; leave it out", ("native", "little")),
    "return_token_ids": UnsupportedField(_TOKEN_IDS, (False,)),
    "return_tokens_as_token_ids": UnsupportedField(_TOKEN_IDS, (False,)),
    "use_activation": UnsupportedField("use normalize to scale embeddings to length 1"),
    "kv_transfer_params": UnsupportedField("there is one engine, with a cache of its own; leave it out", ({},)),
    "vllm_xargs": UnsupportedField("there are no plugins that would read them; leave it out", ({},)),
}

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
    "repeat_penalty": ("repetition_penalty",),
    "typical_p": ("min_p",),
    "do_sample": ("temperature",),
    "messages": ("input", "prompt"),
    "prompt": ("messages", "input"),
    "input": ("prompt", "messages"),
    "thinking_budget": ("thinking_token_budget", "thinking"),
}
"""Fields that do the same or the like, the first of them that an endpoint has."""


def has_no_effect(name: str, value: object) -> bool:
    """Whether a field that an endpoint does not have passes with this value: it is known, and null or neutral."""
    field = _UNSUPPORTED.get(name)
    if field is None:
        return False
    # True is not taken for 1, nor 0 for False.
    return value is None or any(
        value == neutral and isinstance(value, bool) == isinstance(neutral, bool) for neutral in field.neutral
    )


def substitute_for(name: str) -> str | None:
    """Return what to use instead of an unsupported field; None if the name is unknown."""
    field = _UNSUPPORTED.get(name)
    return None if field is None else field.instead


def remedy_for(name: str, known: Collection[str]) -> str:
    """Return how to fix an unknown field of a body that could have had the known ones."""
    instead = [other for other in _INSTEAD.get(name, ()) if other in known]
    if not instead and len(name) <= _LONGEST_NAME:
        instead = get_close_matches(name, known, n=1, cutoff=0.8)
    return f"did you mean {instead[0]}?" if instead else "leave it out"
