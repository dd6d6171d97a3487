"""Writes answers to standard output: as they come, one after another, or as JSON. Times go to standard error."""

import json
import math
import sys
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from archerfish.console import logger
from archerfish.errors import EngineError
from archerfish.metrics.timing import RequestTiming

if TYPE_CHECKING:
    from archerfish.engine.outputs import CompletionOutput, Logprobs, RequestOutput, StreamOutput

_TITLE_LENGTH = 60

# A model may write any control character; on a terminal they could move the cursor or worse.
_VISIBLE_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\t\n\r"}


def write(text: str) -> None:
    """Show text at once. On a terminal, control characters are spelled out; elsewhere text stays as it is."""
    sys.stdout.write(text.translate(_VISIBLE_CONTROLS) if sys.stdout.isatty() else text)
    sys.stdout.flush()


def write_stream(pieces: "Iterable[StreamOutput]", *, has_text: bool) -> None:
    """Write one answer as it comes, as text or as token ids."""
    timing = RequestTiming(time.monotonic())
    reason = error = None
    for piece in pieces:
        before = "," if timing.num_generated_tokens and piece.token_ids else ""
        write(piece.text if has_text else before + _ids_text(piece.token_ids))
        if piece.token_ids:
            timing.record_tokens(len(piece.token_ids), time.monotonic())
        reason, error = piece.finish_reason, piece.error
    write("\n")
    if reason == "error":
        raise EngineError(f"the answer could not be completed: {error}")
    logger.info(speed(timing))


def speed(timing: RequestTiming) -> str:
    """Return an answer's length and speed as text."""
    tokens = "1 token" if timing.num_generated_tokens == 1 else f"{timing.num_generated_tokens:,} tokens"
    ttft = "" if timing.ttft is None else f", TTFT {timing.ttft * 1000:,.0f} ms"
    # Pieces of several tokens may all arrive at once: then there is no time between them.
    rate = f", {1 / timing.tpot:,.0f} tokens/s" if timing.tpot else ""
    return tokens + ttft + rate


def write_all(outputs: "Sequence[RequestOutput]", *, has_text: bool) -> None:
    """Write complete answers, each under the prompt it belongs to."""
    before = ""
    for output in outputs:
        for answer in output.outputs:
            text = answer.text if has_text else _ids_text(answer.token_ids)
            write(f"{before}==> {_title(output, answer)} <==\n{text}\n")
            before = "\n"
    _raise_first_error(outputs)
    logger.info(_rate(outputs))


def write_json(outputs: "Sequence[RequestOutput]") -> None:
    """Write one JSON object per line, one for each prompt. Times are in seconds."""
    for output in outputs:
        # In ASCII, because many programs split lines at characters that JSON leaves as they are.
        sys.stdout.write(json.dumps(_record(output)) + "\n")
    sys.stdout.flush()
    _raise_first_error(outputs)


def _record(output: "RequestOutput") -> dict[str, Any]:
    record: dict[str, Any] = {
        "prompt": output.prompt,
        "prompt_token_ids": output.prompt_token_ids,
        "outputs": [_answer_record(answer) for answer in output.outputs],
        "num_cached_tokens": output.num_cached_tokens,
        "metrics": {name: getattr(output.metrics, name) for name in ("ttft", "tpot", "total", "queue_time")},
    }
    if output.prompt_logprobs is not None:
        record["prompt_logprobs"] = [
            None if entry is None else _logprobs_record(entry) for entry in output.prompt_logprobs
        ]
    return record


def _answer_record(answer: "CompletionOutput") -> dict[str, Any]:
    record: dict[str, Any] = {
        "index": answer.index,
        "text": answer.text,
        "token_ids": answer.token_ids,
        "cumulative_logprob": answer.cumulative_logprob,
        "logprobs": None if answer.logprobs is None else [_logprobs_record(entry) for entry in answer.logprobs],
        "finish_reason": answer.finish_reason,
        "stop_reason": answer.stop_reason,
    }
    return record if answer.error is None else {**record, "error": answer.error}


def _logprobs_record(logprobs: "Logprobs") -> dict[int, dict[str, Any]]:
    return {
        token_id: {
            # JSON has no infinity.
            "logprob": logprob.logprob if math.isfinite(logprob.logprob) else None,
            "rank": logprob.rank,
            "decoded_token": logprob.decoded_token,
        }
        for token_id, logprob in logprobs.items()
    }


def _raise_first_error(outputs: "Sequence[RequestOutput]") -> None:
    for number, output in enumerate(outputs, 1):
        for answer in output.outputs:
            if answer.finish_reason == "error":
                raise EngineError(f"prompt {number} could not be answered: {answer.error}")


def _title(output: "RequestOutput", answer: "CompletionOutput") -> str:
    text = " ".join((output.prompt or _ids_text(output.prompt_token_ids)).split())
    text = text if len(text) <= _TITLE_LENGTH else text[: _TITLE_LENGTH - 3] + "..."
    return text if len(output.outputs) == 1 else f"{text} ({answer.index + 1} of {len(output.outputs)})"


def _ids_text(token_ids: Sequence[int]) -> str:
    return ",".join(map(str, token_ids))


def _rate(outputs: "Sequence[RequestOutput]") -> str:
    num_tokens = sum(output.metrics.num_generated_tokens for output in outputs)
    ends = [output.metrics.finished_time or output.metrics.arrival_time for output in outputs]
    duration = max(ends) - min(output.metrics.arrival_time for output in outputs)
    return f"{num_tokens:,} tokens in {duration:,.2f} s, {num_tokens / max(duration, 1e-9):,.0f} tokens/s"
