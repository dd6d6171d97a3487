"""Parts of replies that several endpoints share."""

import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from starlette.responses import Response

from archerfish.engine.outputs import Logprobs, RequestOutput
from archerfish.server.answers import Answer

_encoder = msgspec.json.Encoder()


def json_reply(value: object, headers: Mapping[str, str] | None = None, status: int = 200) -> Response:
    return Response(_encoder.encode(value), status, dict(headers or {}), media_type="application/json")


def new_id(prefix: str, separator: str = "-") -> str:
    return f"{prefix}{separator}{uuid.uuid4().hex}"


def seconds_now() -> int:
    return int(time.time())


def usage(outputs: Sequence[RequestOutput]) -> dict[str, Any]:
    prompt = sum(len(output.prompt_token_ids) for output in outputs)
    written = sum(len(answer.token_ids) for output in outputs for answer in output.outputs)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": written,
        "total_tokens": prompt + written,
        "prompt_tokens_details": {"cached_tokens": sum(output.num_cached_tokens for output in outputs)},
    }


def token_logprobs(token_ids: Sequence[int], entries: Sequence[Logprobs]) -> list[dict[str, Any]]:
    """How likely each token was, and the likeliest ones at its place."""
    told = []
    for token, candidates in zip(token_ids, entries, strict=True):
        ranked = sorted(candidates.values(), key=lambda one: one.rank)
        top = [_candidate(one.decoded_token, one.logprob) for one in ranked]
        chosen = candidates[token]
        told.append({**_candidate(chosen.decoded_token, chosen.logprob), "top_logprobs": top})
    return told


def request_metrics(answer: Answer) -> dict[str, Any]:
    """How long each part of a request took, in milliseconds."""
    timing = answer.output.metrics
    gaps = sorted(answer.gaps)
    return {
        "queue_ms": _ms(timing.queue_time),
        "ttft_ms": _ms(timing.ttft),
        "tpot_ms": _ms(timing.tpot),
        "itl_ms": {
            "p50": _ms(gaps[len(gaps) // 2]) if gaps else None,
            "p99": _ms(gaps[min(len(gaps) - 1, len(gaps) * 99 // 100)]) if gaps else None,
        },
        "accepted_drafts": 0,
    }


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 3)


def _candidate(text: str, logprob: float) -> dict[str, Any]:
    return {"token": text, "logprob": max(logprob, -9999.0), "bytes": list(text.encode("utf-8", "replace"))}
