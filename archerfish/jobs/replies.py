"""Answers of the engine as the bodies of OpenAI's responses. Knows no requests and no files."""

import math
from collections.abc import Sequence
from typing import Any

from archerfish.engine.outputs import CompletionOutput, Logprob, Logprobs, RequestOutput

_IMPOSSIBLE = -9999.0  # JSON has no infinity; OpenAI's clients know this number.


def chat_reply(output: RequestOutput, *, reply_id: str, model: str, created: int, num_top: int) -> dict[str, Any]:
    """The body of a chat completion. `num_top` is how many likely tokens were asked for at each place."""
    choices = [
        {
            "index": answer.index,
            "message": {"role": "assistant", "content": answer.text, "refusal": None},
            "logprobs": _chat_logprobs(answer, num_top),
            "finish_reason": answer.finish_reason,
        }
        for answer in output.outputs
    ]
    return _reply(reply_id, "chat.completion", model, created, choices, [output])


def completion_reply(
    outputs: Sequence[RequestOutput], *, reply_id: str, model: str, created: int, num_top: int
) -> dict[str, Any]:
    """The body of a completion: the answers to each prompt after those to the one before."""
    answers = [answer for output in outputs for answer in output.outputs]
    choices = [
        {
            "index": index,
            "text": answer.text,
            "logprobs": _completion_logprobs(answer, num_top),
            "finish_reason": answer.finish_reason,
        }
        for index, answer in enumerate(answers)
    ]
    return _reply(reply_id, "text_completion", model, created, choices, outputs)


def _reply(
    reply_id: str, kind: str, model: str, created: int, choices: list[Any], outputs: Sequence[RequestOutput]
) -> dict[str, Any]:
    num_read = sum(len(output.prompt_token_ids) for output in outputs)
    num_written = sum(len(answer.token_ids) for output in outputs for answer in output.outputs)
    return {
        "id": reply_id,
        "object": kind,
        "created": created,
        "model": model,
        "choices": choices,
        "usage": {
            "prompt_tokens": num_read,
            "completion_tokens": num_written,
            "total_tokens": num_read + num_written,
            "prompt_tokens_details": {"cached_tokens": sum(output.num_cached_tokens for output in outputs)},
        },
    }


def _chat_logprobs(answer: CompletionOutput, num_top: int) -> dict[str, Any] | None:
    if answer.logprobs is None:
        return None
    content = [
        {
            **_chat_token(candidates[token]),
            "top_logprobs": [_chat_token(one) for one in _likeliest(candidates, num_top)],
        }
        for token, candidates in zip(answer.token_ids, answer.logprobs, strict=True)
    ]
    return {"content": content, "refusal": None}


def _chat_token(candidate: Logprob) -> dict[str, Any]:
    text = candidate.decoded_token
    return {"token": text, "logprob": _finite(candidate.logprob), "bytes": list(text.encode("utf-8", "replace"))}


def _completion_logprobs(answer: CompletionOutput, num_top: int) -> dict[str, Any] | None:
    if answer.logprobs is None:
        return None
    chosen = [candidates[token] for token, candidates in zip(answer.token_ids, answer.logprobs, strict=True)]
    offsets = [0]
    for one in chosen:
        offsets.append(offsets[-1] + len(one.decoded_token))
    return {
        "tokens": [one.decoded_token for one in chosen],
        "token_logprobs": [_finite(one.logprob) for one in chosen],
        "top_logprobs": [
            {one.decoded_token: _finite(one.logprob) for one in _likeliest(candidates, num_top)}
            for candidates in answer.logprobs
        ],
        "text_offset": offsets[:-1],
    }


def _likeliest(candidates: Logprobs, num_top: int) -> list[Logprob]:
    """Without the chosen token, where that is none of them."""
    return sorted((one for one in candidates.values() if one.rank <= num_top), key=lambda one: one.rank)


def _finite(logprob: float) -> float:
    return logprob if math.isfinite(logprob) else _IMPOSSIBLE
