"""Turns the body of a batch's line into what the engine takes. Strict: a field that is not understood is named.

Self-contained and without a model: whoever answers lines can use it to check them, too.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from archerfish.errors import InvalidParameter, RequestError
from archerfish.request import SamplingParams

CHAT, COMPLETIONS, EMBEDDINGS, RESPONSES = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/embeddings",
    "/v1/responses",
)

# Parameters that a body may name as they are: first OpenAI's, then those that other engines have added.
_SAMPLING = (
    *("temperature", "top_p", "n", "stop", "seed", "presence_penalty", "frequency_penalty", "logit_bias", "max_tokens"),
    *("top_k", "min_p", "repetition_penalty", "min_tokens", "stop_token_ids", "allowed_token_ids", "ignore_eos"),
    *("include_stop_str_in_output", "skip_special_tokens"),
)
_CHAT_FIELDS = ("model", "messages", "max_completion_tokens", "logprobs", "top_logprobs", *_SAMPLING)
_COMPLETION_FIELDS = ("model", "prompt", "logprobs", *_SAMPLING)

# What clients send although it changes nothing: taken with this value, refused with any other.
_ONLY: dict[str, dict[str, object]] = {
    CHAT: {"stream": False, "store": False},
    COMPLETIONS: {"stream": False, "echo": False, "best_of": 1, "suffix": ""},
}
_COMPLETION_LENGTH = 16  # OpenAI's default. A chat writes until it has ended.
_MOST_PROMPTS = 1024


@dataclass(frozen=True, slots=True)
class BodyRequest:
    """What a body asks for: either messages to answer, or prompts to continue."""

    params: SamplingParams
    messages: list[Any] | None = None
    prompts: tuple[str | list[int], ...] = ()


def read_body(
    endpoint: str,
    body: Mapping[str, Any],
    *,
    recommended: Mapping[str, Any] | None = None,
    model: str | None = None,
) -> BodyRequest:
    """What the body asks of the engine, or a RequestError that names what is wrong.

    `recommended` are the model's own sampling parameters, under those of the body. With `model`, a body that names
    another one is refused. Whether messages and token ids suit the model is seen when they are used.
    """
    if endpoint not in _ONLY:
        raise RequestError(f"{endpoint} is not answered offline; {CHAT} and {COMPLETIONS} are")
    known = _CHAT_FIELDS if endpoint == CHAT else _COMPLETION_FIELDS
    for name, value in body.items():
        _check_field(endpoint, name, value, known)
    # A null is the same as leaving the field out.
    given = {name: value for name, value in body.items() if value is not None and name in known}
    _check_model(given.pop("model", model), model)
    if endpoint == CHAT:
        messages = _required(given, "messages", list, "a list of messages")
        _take_chat_length(given)
        _take_chat_logprobs(given)
        values = {"max_tokens": None, **(recommended or {}), **given}
        return BodyRequest(SamplingParams.from_dict(values), messages)
    prompts = _as_prompts(_required(given, "prompt", (str, list), "a text or a list"))
    values = {"max_tokens": _COMPLETION_LENGTH, **(recommended or {}), **given}
    return BodyRequest(SamplingParams.from_dict(values), prompts=prompts)


def _check_field(endpoint: str, name: str, value: object, known: tuple[str, ...]) -> None:
    only = _ONLY[endpoint]
    if name in known or (name in only and value is None):
        return
    if name not in only:
        raise InvalidParameter(name, value, f"there is no such field here; known are {', '.join(sorted(known))}")
    if value != only[name] or type(value) is not type(only[name]):
        raise InvalidParameter(name, value, f"a line of a batch knows only {only[name]!r}")


def _check_model(named: object, model: str | None) -> None:
    if model is not None and named != model:
        raise InvalidParameter("model", named, f"the model that answers is {model!r}; name that, or none")


def _required(given: dict[str, Any], name: str, kinds: type | tuple[type, ...], what: str) -> Any:
    if name not in given:
        raise InvalidParameter(name, None, f"it is missing; it must be {what}")
    value = given.pop(name)
    if not isinstance(value, kinds):
        raise InvalidParameter(name, value, f"it must be {what}")
    return value


def _take_chat_length(given: dict[str, Any]) -> None:
    """max_completion_tokens is the newer name of max_tokens."""
    newer = given.pop("max_completion_tokens", None)
    if newer is None:
        return
    if given.setdefault("max_tokens", newer) != newer:
        both = f"max_tokens is {given['max_tokens']!r}; give one of them"
        raise InvalidParameter("max_completion_tokens", newer, both)


def _take_chat_logprobs(given: dict[str, Any]) -> None:
    """Here it is a switch and a number; the engine has one number."""
    wanted, top = given.pop("logprobs", False), given.pop("top_logprobs", None)
    if not isinstance(wanted, bool):
        raise InvalidParameter("logprobs", wanted, "it must be true or false")
    if top is not None and not wanted:
        raise InvalidParameter("top_logprobs", top, "it needs logprobs = true")
    if wanted:
        given["logprobs"] = 0 if top is None else top


def _as_prompts(prompt: Any) -> tuple[str | list[int], ...]:
    """One prompt or several, each a text or token ids."""
    if isinstance(prompt, str):
        return (prompt,)
    if not prompt or (len(prompt) > _MOST_PROMPTS and not _is_ids(prompt)):
        raise InvalidParameter("prompt", f"{len(prompt)} of them", f"give at least 1 and at most {_MOST_PROMPTS}")
    if _is_ids(prompt):
        return (prompt,)
    if not all(isinstance(one, str) or (isinstance(one, list) and _is_ids(one)) for one in prompt):
        raise InvalidParameter("prompt", prompt, "it must be a text, token ids, or a list of those")
    return tuple(prompt)


def _is_ids(values: list[Any]) -> bool:
    return bool(values) and all(isinstance(value, int) and not isinstance(value, bool) for value in values)
