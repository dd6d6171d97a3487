"""Parts of replies that several endpoints share."""

import time
import uuid
from collections.abc import Sequence
from itertools import islice
from typing import Any

from archerfish.engine.outputs import Logprob, Logprobs, OutputStream, RequestOutput


def finite(logprob: float) -> float:
    """JSON has no infinity; OpenAI's clients know this number."""
    return max(logprob, -9999.0)


def new_id(prefix: str, separator: str = "-") -> str:
    return f"{prefix}{separator}{uuid.uuid4().hex}"


def seconds_now() -> int:
    return int(time.time())


def usage(written: Sequence[OutputStream], num_reasoning: int | None = None) -> dict[str, Any]:
    """Tokens read and written. `num_reasoning` of them were reasoning; None where none is read."""
    used = [output.usage for output in written]
    num_read = sum(counts.num_prompt_tokens for counts in used)
    num_written = sum(counts.num_generated_tokens for counts in used)
    return {
        "prompt_tokens": num_read,
        "completion_tokens": num_written,
        "total_tokens": num_read + num_written,
        "prompt_tokens_details": {"cached_tokens": sum(counts.num_cached_tokens for counts in used)},
        **({} if num_reasoning is None else {"completion_tokens_details": {"reasoning_tokens": num_reasoning}}),
    }


def usage_so_far(num_read: int, num_written: int) -> dict[str, int]:
    """Tokens of one answer while it is being written, as vLLM reports them with each chunk."""
    return {"prompt_tokens": num_read, "completion_tokens": num_written, "total_tokens": num_read + num_written}


def token_logprobs(token_ids: Sequence[int], entries: Sequence[Logprobs], num_top: int) -> list[dict[str, Any]]:
    """Return the log-probability of each token and of the likeliest tokens at its position."""
    entries_shown = []
    for token, candidates in zip(token_ids, entries, strict=True):
        # They come likeliest first; the chosen one follows if it is none of them.
        top = [_candidate(candidate) for candidate in islice(candidates.values(), num_top)]
        entries_shown.append({**_candidate(candidates[token]), "top_logprobs": top})
    return entries_shown


def prompt_logprobs(output: RequestOutput, num_top: int | None) -> dict[str, Any]:
    """Return log-probabilities of the prompt by token id, as vLLM reports them; no field if not requested."""
    if num_top is None:
        return {}
    entries_shown = []
    for token, candidates in zip(output.prompt_token_ids, output.prompt_logprobs or (), strict=True):
        shown = (
            {}
            if candidates is None
            else {
                str(token_id): {
                    "logprob": finite(entry.logprob),
                    "rank": entry.rank,
                    "decoded_token": entry.decoded_token,
                }
                for token_id, entry in candidates.items()
                if token_id == token or entry.rank <= num_top
            }
        )
        entries_shown.append(shown or None)
    return {"prompt_logprobs": entries_shown}


def request_metrics(written: OutputStream) -> dict[str, Any]:
    """Return how long each part of a request took, in milliseconds, and its speculation counts."""
    timing = written.result.metrics
    gaps = sorted(written.gaps)
    return {
        "queue_ms": _ms(timing.queue_time),
        "ttft_ms": _ms(timing.ttft),
        "visible_ttft_ms": _ms(timing.visible_ttft),
        "reasoning_ms": _ms(timing.reasoning_time),
        "tpot_ms": _ms(timing.tpot),
        "itl_ms": {
            "p50": _ms(gaps[len(gaps) // 2]) if gaps else None,
            "p99": _ms(gaps[min(len(gaps) - 1, len(gaps) * 99 // 100)]) if gaps else None,
        },
        "num_drafts": timing.num_drafts,
        "num_draft_tokens": timing.num_draft_tokens,
        "num_accepted_tokens": timing.num_accepted_tokens,
        "acceptance_length": timing.acceptance_length,
    }


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 3)


def _candidate(entry: Logprob) -> dict[str, Any]:
    text = entry.decoded_token
    return {"token": text, "logprob": finite(entry.logprob), "bytes": list(text.encode("utf-8", "replace"))}
