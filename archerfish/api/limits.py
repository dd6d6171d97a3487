"""Limits on one body: its JSON before it is parsed, and the memory and work that it may cause before it is queued."""

import pickle
import re
from typing import NamedTuple

from archerfish.api.endpoint_call import EndpointCall
from archerfish.api.model import ServedModel
from archerfish.engine.input_processor import EngineInputs
from archerfish.errors import RequestError

_WINDOW = 1 << 16
"""Bytes that are looked at together, which bounds the memory that this takes."""
_BRACKETS = re.compile(rb"[\[\]{}]")
_OPENING = b"[{"

_LARGEST_PARAMS = 8 << 20
"""Bytes of sampling parameters that one body may send to the engine: they go along with each of its prompts."""
_MAX_PARAM_ENTRIES = 1 << 18
"""Token ids named in sampling parameters, once for each prompt: the engine looks at every one of them."""
_MAX_EMBEDDING_VALUES = 1 << 22
"""Numbers in the embeddings of one body."""


class JsonLimits(NamedTuple):
    """Limits on the number and depth of values in a JSON text."""

    max_items: int
    """Values, object members and empty containers, at any depth."""
    max_depth: int = 64
    """Arrays and objects within one another."""

    def check(self, text: bytes) -> None:
        """Raise a RequestError that names the limit which the text exceeds. Text that is no JSON may pass."""
        # Of the same length, and every quote that is left begins or ends a string.
        plain = text.replace(rb"\\", b"  ").replace(rb"\"", b"  ") if b"\\" in text else text
        num_items, depth, in_string = 1, 0, False
        for start in range(0, len(plain), _WINDOW):
            pieces = plain[start : start + _WINDOW].split(b'"')
            outside = b" ".join(pieces[in_string::2])
            in_string ^= len(pieces) % 2 == 0
            num_items += outside.count(b",") + outside.count(b"[") + outside.count(b"{")
            if num_items > self.max_items:
                raise RequestError(
                    f"the body has more than {self.max_items:,} JSON items; send less, or start with --max-body-items"
                )
            for bracket in _BRACKETS.findall(outside):
                depth += 1 if bracket in _OPENING else -1
                if depth < 0:
                    return  # The parser refuses it at this place.
                if depth > self.max_depth:
                    raise RequestError(f"the body nests arrays and objects more than {self.max_depth} levels deep")


def check_costs(call: EndpointCall, model: ServedModel, *, body_size: int, max_reply_items: int) -> None:
    """Raise a RequestError for a body, already tokenized, whose parameters or reply would be too large."""
    if body_size * len(call.inputs.prompts) > _MAX_PARAM_ENTRIES:
        _check_params(call.inputs)
    _check_logprobs(call.inputs, model.processor.max_model_len, max_reply_items)
    if call.inputs.params.prompt_embedding and model.embedding is not None:
        _check_embeddings(len(call.inputs.prompts), model.embedding.size)


def _check_params(inputs: EngineInputs) -> None:
    params, num_prompts = inputs.params, len(inputs.prompts)
    num_entries = len(params.logit_bias) + len(params.allowed_token_ids or ()) + len(params.stop_token_ids)
    if num_entries * num_prompts > _MAX_PARAM_ENTRIES:
        raise RequestError(
            f"{num_entries:,} token ids in sampling parameters for each of {num_prompts:,} prompts are more than "
            f"{_MAX_PARAM_ENTRIES:,}; send fewer prompts in one body, or name fewer token ids"
        )
    size = len(pickle.dumps(params))
    if size * num_prompts > _LARGEST_PARAMS:
        raise RequestError(
            f"sampling parameters of {size:,} bytes for each of {num_prompts:,} prompts come to more than "
            f"{_LARGEST_PARAMS:,} bytes; send fewer prompts in one body, or a shorter response format"
        )


def _check_logprobs(inputs: EngineInputs, max_model_len: int, max_items: int) -> None:
    """Refuse replies that could hold more log-probabilities than allowed.

    An answer without max_tokens is counted where it is one of several: a single one is bounded by the context.
    """
    params, best, num_items = inputs.params, inputs.best, 0
    shows_logprobs = best is None or best.shows_logprobs
    for prompt in inputs.prompts:
        length = len(prompt)
        if params.logprobs is not None and shows_logprobs:
            limit = params.max_tokens
            if limit is None:
                limit = max_model_len if inputs.num_sequences > 1 else 0
            num_items += params.n * min(limit, max_model_len - length) * (params.logprobs + 1)
        if params.prompt_logprobs is not None:
            num_choices = params.n if best is None else best.num_answers
            num_items += num_choices * length * (params.prompt_logprobs + 1)
    if num_items > max_items:
        raise RequestError(
            f"the reply could hold {num_items:,} log-probabilities, and {max_items:,} are allowed (--max-body-items); "
            f"ask for fewer prompts, answers, max_tokens or alternatives"
        )


def _check_embeddings(num_inputs: int, size: int) -> None:
    if num_inputs * size > _MAX_EMBEDDING_VALUES:
        raise RequestError(
            f"{num_inputs:,} embeddings of {size:,} numbers are too many for one reply; send at most "
            f"{_MAX_EMBEDDING_VALUES // size:,} inputs at a time"
        )
