"""Turns text, token ids and messages into requests, and refuses what could never be served."""

import uuid
from array import array
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

from archerfish.config.speculation import NON_SPECULATIVE_METHODS
from archerfish.errors import InvalidParameter, PromptTooLong, TokenizerError
from archerfish.request import LARGEST_PRIORITY, SLO, Best, Request, RequestClass, SamplingParams, Structured
from archerfish.sampling.grammar_sandbox import GrammarSandbox
from archerfish.tokenizer import Tokenizer

_DEFAULT_MAX_TOKENS = SamplingParams().max_tokens or 0

Prompt = str | Sequence[int]
Message = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineInputs:
    """Everything that the engine needs to answer a body: complete requests but for their ids and their owner."""

    prompts: Sequence["array[int]"]
    """The token ids of each prompt, checked and truncated."""
    prompt_texts: Sequence[str | None]
    """The text that each prompt was tokenized from, if the reply repeats it."""
    params: SamplingParams
    """Checked against the model and the engine, except for the grammar."""
    best: Best | None = None
    """Which answers are returned, if the engine writes more of them than that."""
    request_id: str | None = None
    """The name that the client gave the request."""
    priority: int = 0
    cache_salt: str = ""
    slo: SLO | None = None
    user: str | None = None

    @property
    def num_sequences(self) -> int:
        """Number of answers that the engine writes."""
        return len(self.prompts) * self.params.n

    @property
    def num_prompt_tokens(self) -> int:
        """Number of tokens in all prompts."""
        return sum(map(len, self.prompts))

    def prompt_length(self, index: int = 0) -> int:
        """Return the number of tokens in one of the prompts."""
        return len(self.prompts[index])

    def requests(
        self,
        now: float,
        external_id: str = "",
        *,
        request_class: RequestClass = RequestClass.ONLINE,
        tenant: str = "",
        slo: SLO | None = None,
        cache_salt: str | None = None,
    ) -> list[Request]:
        """Return one request for each prompt.

        `external_id` and `slo` are for inputs that name none; `cache_salt` replaces theirs.
        """
        name = self.request_id or external_id
        return [
            Request(
                request_id=uuid.uuid4().hex,
                external_id=name if len(self.prompts) == 1 else f"{name}-{number}",
                prompt_token_ids=tuple(prompt),
                params=self.params,
                arrival_time=now,
                request_class=request_class,
                priority=self.priority,
                cache_salt=self.cache_salt if cache_salt is None else cache_salt,
                slo=slo if self.slo is None else self.slo,
                tenant=tenant,
                position=number,
                best=self.best,
            )
            for number, prompt in enumerate(self.prompts)
        ]


class InputProcessor:
    """Everything that must be known to judge a request before it is scheduled."""

    def __init__(
        self,
        tokenizer: Tokenizer | None,
        vocab_size: int,
        max_model_len: int,
        clock: Callable[[], float],
        max_positions: int | None = None,
        speculation_methods: tuple[str, ...] = NON_SPECULATIVE_METHODS,
    ) -> None:
        self.tokenizer = tokenizer
        self._max_positions = max_positions
        """Longest context the model could be started with; None where there is no end."""
        self._vocab_size = vocab_size
        self.max_model_len = max_model_len
        self._clock = clock
        self._speculation_methods = speculation_methods
        """Those that the engine has."""
        self._sandbox = GrammarSandbox(tokenizer, vocab_size)

    def request(
        self,
        prompt: Prompt,
        params: SamplingParams,
        *,
        external_id: str = "",
        request_class: RequestClass | str = RequestClass.ONLINE,
        priority: int = 0,
        cache_salt: str = "",
        add_special_tokens: bool = True,
    ) -> Request:
        """Return a valid request, or raise a RequestError that names what is wrong."""
        check_priority(priority)
        if not isinstance(cache_salt, str):
            raise InvalidParameter("cache_salt", cache_salt, "it must be a string")
        inputs = self.inputs(
            [prompt], params, add_special_tokens=add_special_tokens, priority=priority, cache_salt=cache_salt
        )
        self.check_grammar(params.structured)
        [request] = inputs.requests(self._clock(), external_id, request_class=_as_class(request_class))
        return request

    def inputs(
        self,
        prompts: Sequence[Prompt],
        params: SamplingParams,
        *,
        add_special_tokens: bool = True,
        repeats_prompt: bool = False,
        **fields: Any,
    ) -> EngineInputs:
        """Tokenize prompts and check everything but the grammar; raise a RequestError that names what is wrong.

        `repeats_prompt`: the reply contains the text of the prompts. `fields` are further ones of EngineInputs.
        """
        checked = self._checked(params)
        token_id_arrays: list[array[int]] = []
        texts: list[str | None] = []
        for prompt in prompts:
            whole = self.token_ids(prompt, add_special_tokens=add_special_tokens)
            token_ids = self.truncated(whole, params)
            self.check_length(token_ids)
            # The reply repeats what is left of a prompt that was truncated.
            is_repeated = repeats_prompt and isinstance(prompt, str) and len(token_ids) == len(whole)
            token_id_arrays.append(array("i", token_ids))
            texts.append(str(prompt) if is_repeated else None)
        best = None
        if checked.best_of is not None and checked.best_of != checked.n:
            best = Best(checked.n, shows_logprobs=checked.logprobs is not None)
            checked = replace(checked, n=checked.best_of, best_of=None, logprobs=checked.logprobs or 0)
        return EngineInputs(prompts=token_id_arrays, prompt_texts=texts, params=checked, best=best, **fields)

    def check_grammar(self, structured: Structured | None) -> None:
        """Raise a RequestError if answers cannot have this grammar. The first check of a grammar compiles it."""
        if structured is not None:
            if self.tokenizer is None:
                raise InvalidParameter("structured", "...", "it needs a tokenizer, and none was loaded")
            self._sandbox.check(structured)

    def has_checked(self, structured: Structured | None) -> bool:
        """Whether `check_grammar` returns at once."""
        return structured is None or self._sandbox.has_verdict(structured)

    def _checked(self, params: SamplingParams) -> SamplingParams:
        """Return a copy of parameters that this model and engine can serve: later changes by the caller do no harm."""
        if not isinstance(params, SamplingParams):
            raise InvalidParameter("params", params, "they must be SamplingParams")
        if params.stop and self.tokenizer is None:
            raise InvalidParameter("stop", params.stop, "stop strings need a tokenizer; use stop_token_ids")
        method = None if params.speculation is None else params.speculation.method
        if method is not None and method not in self._speculation_methods:
            allowed = (
                f"this engine has {', '.join(self._speculation_methods)}; others are loaded by --speculative-config"
            )
            raise InvalidParameter("speculation.method", method, allowed)
        params.check_token_ids(self._vocab_size)
        self.check_max_tokens(params.max_tokens)
        if not params.bad_words:
            return copy(params)
        sequences = (*params.bad_words_token_ids, *self._bad_sequences(params.bad_words))
        params = replace(params, bad_words=(), bad_words_token_ids=sequences)
        params.check_token_ids(self._vocab_size)
        return params

    def check_max_tokens(self, max_tokens: int | None) -> None:
        """Raise if an answer of this length exceeds the whole context.

        Smaller values are cut to what the prompt leaves. The default is never refused: a model with a tiny context can
        be used without naming a length.
        """
        if max_tokens is not None and max_tokens > max(self.max_model_len, _DEFAULT_MAX_TOKENS):
            allowed = f"the context has {self.max_model_len} tokens (--max-model-len), prompt and answer together"
            raise InvalidParameter("max_tokens", max_tokens, allowed)

    def _bad_sequences(self, words: Sequence[str]) -> list[tuple[int, ...]]:
        """Words as the tokenizer splits them, at the start of a text and behind a space."""
        if self.tokenizer is None:
            allowed = "words need a tokenizer, and none was loaded; use bad_words_token_ids"
            raise InvalidParameter("bad_words", words, allowed)
        texts = [text for word in words for text in (word, " " + word.lstrip())]
        sequences = (tuple(self.tokenizer.encode(text, add_special_tokens=False)) for text in texts)
        return list(dict.fromkeys(sequence for sequence in sequences if sequence))

    def truncated(self, token_ids: Sequence[int], params: SamplingParams) -> Sequence[int]:
        """Return the end of a prompt, if truncate_prompt_tokens says so, else all of it."""
        limit = params.truncate_prompt_tokens
        if limit is None:
            return token_ids
        if limit == -1:
            limit = max(1, self.max_model_len - (params.max_tokens or 1))
        return token_ids[-limit:]

    def check_length(self, token_ids: Sequence[int]) -> None:
        """Raise unless a prompt of these tokens can be answered. The scheduler checks it too, in its own process."""
        if not token_ids:
            raise InvalidParameter("prompt", "", "it must have at least one token")
        if len(token_ids) >= self.max_model_len:
            raise PromptTooLong(len(token_ids), self.max_model_len, self._max_positions)

    def token_ids(self, prompt: Prompt, *, add_special_tokens: bool = True) -> tuple[int, ...]:
        """The prompt's token ids, all of them known to the model."""
        if isinstance(prompt, str):
            tokenizer = self._needed_tokenizer("a text prompt")
            token_ids = tuple(tokenizer.encode(prompt, add_special_tokens=add_special_tokens))
        else:
            token_ids = _as_ids(prompt)
            # Most prompts are in order: this takes a tenth of the time of looking at each token below.
            is_typed = isinstance(prompt, array) and prompt.typecode == "i"
            if is_typed and token_ids and min(token_ids) >= 0 and max(token_ids) < self._vocab_size:
                return token_ids
        for token in token_ids:
            # Of a text, too: many tokenizers know tokens for which the model has no row.
            if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < self._vocab_size:
                raise InvalidParameter("prompt", token, self._why_unknown(token))
        return token_ids

    def chat_text(self, messages: Sequence[Message], /, **variables: Any) -> str:
        """Messages laid out as the model's chat template wants them. Any name can be one of its `variables`."""
        _check_parts(messages)
        return self._needed_tokenizer("a chat").chat_template.render(messages, **variables)

    def chat_text_by(self, template: str, messages: Sequence[Message], **variables: Any) -> str:
        """The same by a template of the caller's own: it is a program, so it must not come from anyone else."""
        _check_parts(messages)
        if not isinstance(template, str):
            raise InvalidParameter("chat_template", template, "it must be the text of a template")
        return self._needed_tokenizer("a chat").other_template(template).render(messages, **variables)

    def _why_unknown(self, token: object) -> str:
        allowed = f"the model has {self._vocab_size} tokens, with ids from 0 to {self._vocab_size - 1}"
        text = self.tokenizer.token_text(token) if self.tokenizer is not None and isinstance(token, int) else ""
        return f"{allowed}; to the tokenizer this id is {text!r}" if text else allowed

    def _needed_tokenizer(self, what: str) -> Tokenizer:
        if self.tokenizer is None:
            raise TokenizerError(f"{what} needs a tokenizer, and none was loaded; give token ids instead")
        return self.tokenizer


def _check_parts(messages: object) -> None:
    for message in messages if isinstance(messages, Sequence) else ():
        content = message.get("content") if isinstance(message, Mapping) else None
        for part in content if isinstance(content, list) else ():
            if isinstance(part, Mapping) and part.get("type") != "text":
                raise InvalidParameter("messages", part.get("type"), why_not_text(part.get("type")))


def why_not_text(kind: object) -> str:
    """Return what to say of a part of a message that is no text."""
    return f"this model reads text only, and this part is of type {kind}; leave it out"


def check_priority(priority: object) -> None:
    """Raise unless this is a priority that a request can have."""
    is_whole = isinstance(priority, int) and not isinstance(priority, bool)
    if not is_whole or not -LARGEST_PRIORITY <= priority <= LARGEST_PRIORITY:  # type: ignore[operator]
        allowed = f"it must be a whole number from {-LARGEST_PRIORITY} to {LARGEST_PRIORITY}; lower goes first"
        raise InvalidParameter("priority", priority, allowed)


def _as_class(value: RequestClass | str) -> RequestClass:
    """By value, or by its name in small letters."""
    names = {kind.name.lower(): kind for kind in RequestClass}
    if isinstance(value, RequestClass):
        return value
    if not isinstance(value, str) or value not in names:
        raise InvalidParameter("request_class", value, f"it must be one of {', '.join(names)}")
    return names[value]


def _as_ids(prompt: object) -> tuple[int, ...]:
    """Token ids from whatever holds whole numbers: a list, a tuple, an array."""
    listed = prompt.tolist() if hasattr(prompt, "tolist") else prompt
    if not isinstance(listed, (list, tuple, range)):
        raise InvalidParameter("prompt", prompt, "it must be a string or a list of token ids")
    return tuple(listed)
