"""Prompts, conversations and their options in every shape that users write them, brought into one."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypedDict, cast

from archerfish.engine.input_processor import Message, Prompt
from archerfish.errors import InvalidParameter, RequestError


class TextPrompt(TypedDict, total=False):
    """A text, as vLLM's users write it: TextPrompt(prompt="Once upon a time")."""

    prompt: str
    cache_salt: str


class TokensPrompt(TypedDict, total=False):
    """Token ids, likewise: TokensPrompt(prompt_token_ids=[1, 2, 3])."""

    prompt_token_ids: Sequence[int]
    prompt: str
    """The text that they were made of, for the output."""
    cache_salt: str


PromptType = Prompt | TextPrompt | TokensPrompt
"""One prompt."""

_KEYS = ("prompt", "prompt_token_ids", "cache_salt")


class GivenPrompt(NamedTuple):
    """What is tokenized, and what is said of it."""

    content: Prompt
    text: str | None
    """What the output shows."""
    cache_salt: str | None = None


def as_prompts(prompts: object) -> list[GivenPrompt]:
    """One prompt or many; a list or array of numbers is one prompt of token ids."""
    if isinstance(prompts, (str, Mapping)):
        return [as_prompt(prompts)]
    if hasattr(prompts, "tolist"):
        prompts = prompts.tolist()
    if isinstance(prompts, bytes) or not isinstance(prompts, Iterable):
        raise InvalidParameter("prompts", prompts, "they must be a text, a list of token ids, or a list of those")
    listed = list(prompts)
    if listed and all(isinstance(item, int) for item in listed):
        return [as_prompt(listed)]
    return [as_prompt(item) for item in listed]


def as_prompt(prompt: object) -> GivenPrompt:
    """A text or token ids, plain or as a mapping."""
    if not isinstance(prompt, Mapping):
        return GivenPrompt(cast(Prompt, prompt), prompt if isinstance(prompt, str) else None)
    prompt = {key: value for key, value in prompt.items() if value is not None}
    if not set(prompt) <= set(_KEYS) or not {"prompt", "prompt_token_ids"} & set(prompt):
        allowed = f"a mapping must have prompt or prompt_token_ids, and nothing but {', '.join(_KEYS)}"
        raise InvalidParameter("prompt", prompt, f"{allowed}; images and other media are not read")
    text = prompt.get("prompt")
    content = prompt.get("prompt_token_ids", text)
    if "prompt_token_ids" in prompt and not isinstance(text, (str, type(None))):
        raise InvalidParameter("prompt", text, "with prompt_token_ids it must be the text of the token ids")
    return GivenPrompt(cast(Prompt, content), text if isinstance(text, str) else None, prompt.get("cache_salt"))


def as_conversations(messages: object) -> list[Sequence[Message]]:
    """One conversation or many."""
    if not isinstance(messages, (list, tuple)):
        raise InvalidParameter("messages", messages, "they must be a list of messages, or a list of such lists")
    if messages and isinstance(messages[0], Mapping):
        return [messages]
    return list(messages)


def as_many(given: Any, count: int, name: str) -> list[Any]:
    """One value for all, or one for each."""
    if isinstance(given, str) or not isinstance(given, Sequence):
        return [given] * count
    if len(given) != count:
        raise InvalidParameter(name, f"{len(given)} of them", f"there are {count} prompts; give one, or one for each")
    return list(given)


def one_of(first: Any, second: Any, names: tuple[str, str]) -> Any:
    """The value of an argument with two names; None if neither is given, an error if both are."""
    if first is not None and second is not None:
        raise InvalidParameter(names[1], "...", f"{names[0]} is the same and was given, too; leave one of them out")
    return second if first is None else first


@contextmanager
def naming(number: int | None) -> Iterator[None]:
    """Say which of several prompts an error is about."""
    try:
        yield
    except RequestError as error:
        if number is not None:
            error.args = (f"prompt {number}: {error}",)
        raise
