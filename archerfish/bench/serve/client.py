"""Requests streamed answers from a server of OpenAI's API, and records when each token came.

Does not decide when to send.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from archerfish.bench.serve.connections import ConnectionBroke, HttpClient, ServerAddress
from archerfish.bench.serve.datasets.sample import Sample
from archerfish.bench.serve.events import StreamedAnswer, error_message
from archerfish.bench.serve.records import RequestRecord
from archerfish.errors import ConfigError

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
_LARGEST_ERROR = 65536
_OK = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOptions:
    """Fields of every request, in addition to its prompt."""

    model: str
    endpoint: str
    ignore_eos: bool = False
    """Applies to samples that must have their full output length."""
    wants_metrics: bool = False
    """Whether to request the server's own times, which only ours reports."""
    temperature: float | None = None
    extra_body: Mapping[str, Any] | None = None
    timeout: float = 600.0
    """Seconds after which an answer counts as failed."""


class BenchClient:
    """Sends samples. Times count from `start`."""

    def __init__(
        self,
        origin: ServerAddress,
        headers: Mapping[str, str],
        options: RequestOptions,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._http = HttpClient(origin, headers, clock)
        self._options = options
        self.clock = clock
        self._start = clock()

    def start(self) -> None:
        """Start the run's clock."""
        self._start = self.clock()

    def now(self) -> float:
        """Return the seconds since the run began."""
        return self.since_start(self.clock())

    def since_start(self, moment: float) -> float:
        """Return a time of the clock in seconds of the run, to the microsecond."""
        return round(moment - self._start, 6)

    def body(self, sample: Sample) -> bytes:
        """Return the request body of a sample: built beforehand, so that it costs nothing while times are taken."""
        options = self._options
        body: dict[str, Any] = {"model": options.model, "stream": True, "stream_options": {"include_usage": True}}
        if options.endpoint.endswith("/chat/completions"):
            body["messages"] = _messages(sample)
            body["max_completion_tokens"] = sample.num_output_tokens
        elif isinstance(sample.prompt, str):
            body["prompt"], body["max_tokens"] = sample.prompt, sample.num_output_tokens
        else:
            raise ConfigError(f"the dataset has chats, which {options.endpoint} does not take: give --endpoint {CHAT}")
        if options.temperature is not None:
            body["temperature"] = options.temperature
        if options.ignore_eos and sample.must_write_all:
            body["ignore_eos"] = True
        if options.wants_metrics:
            body["metrics"] = True
        laid_over = {**body, **(options.extra_body or {})}
        return msgspec.json.encode({name: value for name, value in laid_over.items() if value is not None})

    async def send(self, index: int, sample: Sample, body: bytes, planned: float | None) -> RequestRecord:
        """Send a sample, and return the record of its answer. Without a planned time, it counts as planned for now."""
        answer, failure = StreamedAnswer(), bytearray()
        is_stream: bool | None = None

        def on_data(data: bytes, now: float) -> None:
            nonlocal is_stream
            if is_stream is None:
                # Errors are JSON or text, whatever their status; only a stream begins like this.
                is_stream = data.lstrip().startswith((b"data:", b":", b"event:", b"id:", b"retry:"))
            if is_stream:
                answer.feed(data, now)
            elif len(failure) < _LARGEST_ERROR:
                failure.extend(data)

        sent = self.now()
        status, error = None, None
        try:
            async with asyncio.timeout(self._options.timeout):
                status = await self._http.post(self._options.endpoint, body, on_data)
        except ConnectionBroke as broke:
            error = str(broke)
        except TimeoutError:
            error = f"no end within {self._options.timeout:g} seconds"
        if status is not None and status != _OK:
            error = f"HTTP {status}: {error_message(bytes(failure))}"
        elif error is None:
            error = answer.error or _incomplete(answer, bytes(failure))
        return self._record(index, sample, answer, planned=planned, sent=sent, status=status, error=error)

    async def get(self, path: str) -> tuple[int, bytes]:
        return await self._http.get(path)

    def close(self) -> None:
        self._http.close()

    def _record(
        self,
        index: int,
        sample: Sample,
        answer: StreamedAnswer,
        *,
        planned: float | None,
        sent: float,
        status: int | None,
        error: str | None,
    ) -> RequestRecord:
        times = tuple(map(self.since_start, answer.token_times()))
        return RequestRecord(
            index=index,
            planned=sent if planned is None else round(planned, 6),
            sent=sent,
            token_times=times,
            first_visible=None if answer.first_visible is None else self.since_start(answer.first_visible),
            ended=self.now(),
            num_prompt_tokens_requested=sample.num_prompt_tokens,
            num_output_tokens_requested=sample.num_output_tokens,
            num_shared_tokens_requested=sample.num_shared_tokens,
            must_write_all=sample.must_write_all,
            num_prompt_tokens=answer.num_prompt_tokens,
            num_cached_tokens=answer.num_cached_tokens,
            num_output_tokens=len(times),
            counted_by_server=answer.num_output_tokens is not None,
            finish_reason=answer.finish_reason,
            status=status,
            error=error,
            server=answer.server,
        )


def _messages(sample: Sample) -> list[dict[str, str]]:
    if isinstance(sample.prompt, str):
        return [{"role": "user", "content": sample.prompt}]
    return [{"role": message.role, "content": message.content} for message in sample.prompt]


def _incomplete(answer: StreamedAnswer, other: bytes) -> str | None:
    """Return why a response without an error is not a complete answer."""
    if other:
        return f"the answer was not streamed: {error_message(other)}"
    if answer.finish_reason is None and not answer.is_done:
        return "the stream ended before the answer did"
    if not answer.token_times():
        return "the answer had no token"
    return None
