"""The output of a request, in the shape that vLLM's users know, and the streams that build it from token events."""

import asyncio
from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from itertools import pairwise

from archerfish.metrics.requests import Usage
from archerfish.metrics.timing import RequestTiming
from archerfish.request import Best, FinishReason, Request, TokenEvent, TokenLogprobs
from archerfish.tokenizer import Detokenizer, Tokenizer


@dataclass(slots=True)
class Logprob:
    """One candidate for a token's place."""

    logprob: float
    rank: int
    """1 for the likeliest."""
    decoded_token: str


Logprobs = dict[int, Logprob]
"""By token id: the chosen token and the likeliest ones."""


@dataclass(slots=True)
class CompletionOutput:
    """One of a request's n answers."""

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    cumulative_logprob: float | None = None
    logprobs: list[Logprobs] | None = None
    finish_reason: str | None = None
    """stop, length, abort or error; None while it is being written."""
    stop_reason: int | str | None = None
    """The stop token or stop text that ended it, if the request named it."""
    error: str | None = None

    def finished(self) -> bool:
        """Whether nothing will be added."""
        return self.finish_reason is not None


@dataclass(slots=True)
class RequestOutput:
    """A request and what was written for it."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    metrics: RequestTiming
    prompt_logprobs: list[Logprobs | None] | None = None
    """The first is None: nothing precedes it."""
    num_cached_tokens: int = 0
    """Prompt tokens that did not have to be computed."""
    prompt_embedding: list[float] | None = None
    """The mean of the last layer's states over the prompt, if it was asked for."""
    prompt_states: bytes | None = None
    """The last layer's state of each prompt token, if they were asked for: float32, row after row."""
    finished: bool = False


@dataclass(frozen=True, slots=True)
class StreamOutput:
    """What one step added to one answer."""

    index: int
    text: str
    token_ids: list[int]
    logprobs: list[Logprobs] | None
    finish_reason: str | None
    stop_reason: int | str | None
    error: str | None = None


def _mean_logprob(answer: CompletionOutput) -> float:
    assert answer.cumulative_logprob is not None, "answers are compared by log-probabilities that were asked for"
    return answer.cumulative_logprob / max(1, len(answer.token_ids))


StopSequence = Callable[[str, int], None]
"""Called with a request id and an index when a stop string has completed an answer that the engine still continues."""

_FROM_WORST = (FinishReason.ERROR, FinishReason.ABORT, FinishReason.LENGTH, FinishReason.STOP)


class OutputStream:
    """Turns the token events of one request into text, log-probabilities, finish reasons, usage and times.

    Text never splits a character and ends at stop strings.
    """

    def __init__(self, request: Request, prompt: str | None, tokenizer: Tokenizer | None, stop: StopSequence) -> None:
        self.request = request
        params = request.params
        self._tokenizer = tokenizer
        self._stop = stop
        self._include_stop = params.include_stop_str_in_output
        self._best = request.best
        self.result = RequestOutput(
            request_id=request.external_id or request.request_id,
            prompt=prompt,
            prompt_token_ids=list(request.prompt_token_ids),
            outputs=[
                CompletionOutput(index)
                if params.logprobs is None
                else CompletionOutput(index, cumulative_logprob=0.0, logprobs=[])
                for index in range(params.n)
            ],
            metrics=RequestTiming(request.arrival_time, num_answers=params.n),
            prompt_logprobs=None if params.prompt_logprobs is None else [None],
        )
        self._detokenizers: list[Detokenizer | None] = [None] * params.n
        if tokenizer is not None and params.detokenize:
            self._detokenizers = [
                Detokenizer(
                    tokenizer,
                    request.prompt_token_ids,
                    skip_special_tokens=params.skip_special_tokens,
                    spaces_between_special_tokens=params.spaces_between_special_tokens,
                    stop=params.stop,
                    include_stop_str_in_output=params.include_stop_str_in_output,
                    min_tokens=params.min_tokens,
                )
                for _ in range(params.n)
            ]
        self._lengths = [array("l") for _ in range(params.n)]
        """For each answer, its number of tokens after each event."""
        self._times = [array("d") for _ in range(params.n)]
        """For each answer, the arrival time of each event."""
        self._arrivals = array("d")
        """Times at which anything arrived."""

    @property
    def finished(self) -> bool:
        """Whether all answers are complete."""
        return self.result.finished

    @property
    def has_failed(self) -> bool:
        """Whether an answer that is returned ended with an error."""
        return any(answer.finish_reason == FinishReason.ERROR.value for answer in self.result.outputs)

    @property
    def error(self) -> str | None:
        """The reason of a failure, if it is known."""
        return next((answer.error for answer in self.result.outputs if answer.error is not None), None)

    @property
    def finish_reason(self) -> FinishReason:
        """The worst finish reason of all answers; answers that are not complete count as aborted."""
        reasons = {answer.finish_reason or FinishReason.ABORT.value for answer in self.result.outputs}
        return next(reason for reason in _FROM_WORST if reason.value in reasons)

    @property
    def usage(self) -> Usage:
        """Token counts. They include the answers that best_of generated and did not return."""
        result = self.result
        num_generated = result.metrics.num_generated_tokens
        return Usage(len(result.prompt_token_ids), num_generated, result.num_cached_tokens)

    @property
    def size(self) -> int:
        """Number of values that a reply contains: tokens, candidates of log-probabilities, numbers of an embedding."""
        result = self.result
        entries = [*(answer.logprobs or () for answer in result.outputs), result.prompt_logprobs or ()]
        num_values = self.usage.num_generated_tokens + len(result.prompt_embedding or ())
        return num_values + sum(len(entry or ()) for part in entries for entry in part)

    @property
    def gaps(self) -> list[float]:
        """Seconds between arrivals of tokens."""
        return [later - earlier for earlier, later in pairwise(self._arrivals)]

    def time_after(self, index: int, num_tokens: int) -> float | None:
        """Return when an answer first had more than `num_tokens` tokens; None if it never had."""
        position = bisect_right(self._lengths[index], num_tokens)
        return self._times[index][position] if position < len(self._times[index]) else None

    def whole(self, index: int) -> StreamOutput:
        """Return one of the answers as a single piece."""
        answer = self.result.outputs[index]
        return StreamOutput(
            index, answer.text, answer.token_ids, answer.logprobs, answer.finish_reason, answer.stop_reason
        )

    def add_all(self, events: Iterable[TokenEvent], now: float) -> list[StreamOutput]:
        """Take in events that arrived together and return what they add."""
        return [piece for event in events if (piece := self.add(event, now)) is not None]

    def add(self, event: TokenEvent, now: float) -> StreamOutput | None:
        """Take in one event and return what it adds.

        It adds nothing if its answer was complete before, or while the best of several answers is not known yet.
        """
        if self.finished:
            return None
        answer = self.result.outputs[event.sequence_index]
        if answer.finish_reason is not None:
            return None
        self._record_start(event)
        detokenizer = self._detokenizers[event.sequence_index]
        token_ids, text, stop_text = event.token_ids, "", None
        if detokenizer is not None and token_ids:
            piece = detokenizer.add(self._with_text(event))
            text, stop_text = piece.text, piece.stopped
            if stop_text is not None:
                token_ids = token_ids[: piece.num_tokens]
        if token_ids:
            self.result.metrics.record_tokens(len(token_ids), now)
        if event.num_draft_tokens:
            self.result.metrics.record_drafts(event.num_draft_tokens, event.num_accepted_tokens)
        answer.token_ids += token_ids
        logprobs = self._add_logprobs(answer, event.logprobs, len(token_ids))
        if stop_text is not None:
            self._finish(answer, FinishReason.STOP, stop_text)
            if event.finish_reason is None:
                self._stop(event.request_id, event.sequence_index)
        elif event.finish_reason is not None:
            text += detokenizer.finish() if detokenizer is not None else ""
            answer.error = event.error
            self._finish(answer, event.finish_reason, event.stop_reason)
        answer.text += text
        if self.result.finished:
            self.result.metrics.finished_time = now
            if self._best is not None:
                self._choose(self._best)
        if self._best is not None:
            return None  # Which answers are returned is known only when all are there.
        self._lengths[answer.index].append(len(answer.token_ids))
        self._times[answer.index].append(now)
        if not self._arrivals or self._arrivals[-1] != now:
            self._arrivals.append(now)
        return StreamOutput(
            event.sequence_index, text, token_ids, logprobs, answer.finish_reason, answer.stop_reason, answer.error
        )

    def _with_text(self, event: TokenEvent) -> list[int]:
        """The tokens that are part of the text: a stop token ends it, as a stop text does."""
        ends_by_token = event.finish_reason is FinishReason.STOP
        return event.token_ids[:-1] if ends_by_token and not self._include_stop else event.token_ids

    def _record_start(self, event: TokenEvent) -> None:
        if event.scheduled_time is not None and self.result.metrics.scheduled_time is None:
            self.result.metrics.scheduled_time = event.scheduled_time
            self.result.num_cached_tokens = event.num_cached_tokens
        if event.prompt_embedding is not None:
            self.result.prompt_embedding = event.prompt_embedding
        if event.prompt_states is not None:
            self.result.prompt_states = event.prompt_states
        if event.prompt_logprobs and event.sequence_index == 0 and self.result.prompt_logprobs is not None:
            self.result.prompt_logprobs += [self._logprobs(entry) for entry in event.prompt_logprobs]

    def _add_logprobs(
        self, answer: CompletionOutput, entries: list[TokenLogprobs] | None, count: int
    ) -> list[Logprobs] | None:
        if answer.logprobs is None or answer.cumulative_logprob is None:
            return None
        retained = (entries or [])[:count]
        logprobs = [self._logprobs(entry) for entry in retained]
        answer.logprobs += logprobs
        answer.cumulative_logprob += sum(entry.logprob for entry in retained)
        return logprobs

    def _logprobs(self, entry: TokenLogprobs) -> Logprobs:
        candidates = {
            token: Logprob(value, rank, self._text(token)) for rank, (token, value) in enumerate(entry.top, 1)
        }
        candidates.setdefault(entry.token_id, Logprob(entry.logprob, entry.rank, self._text(entry.token_id)))
        return candidates

    def _text(self, token_id: int) -> str:
        return "" if self._tokenizer is None else self._tokenizer.token_text(token_id)

    def _choose(self, best: Best) -> None:
        """Keep the likeliest answers, the likeliest first. One that failed is no answer, unless all failed."""
        whole = [answer for answer in self.result.outputs if answer.finish_reason != FinishReason.ERROR.value]
        ranked = sorted(whole or self.result.outputs, key=_mean_logprob, reverse=True)
        self.result.outputs = [replace(answer, index=index) for index, answer in enumerate(ranked[: best.num_answers])]
        if not best.shows_logprobs:
            for answer in self.result.outputs:
                answer.logprobs = answer.cumulative_logprob = None

    def _finish(self, answer: CompletionOutput, reason: FinishReason, stop_reason: int | str | None) -> None:
        answer.finish_reason = reason.value
        answer.stop_reason = stop_reason
        self.result.finished = all(output.finish_reason is not None for output in self.result.outputs)


class RequestStream(OutputStream):
    """The output of a request that runs in the engine process: its events wait here until they are read.

    Several events are read at once if the reader is slow.
    """

    def __init__(
        self,
        request: Request,
        prompt: str | None,
        tokenizer: Tokenizer | None,
        stop: StopSequence,
        clock: Callable[[], float],
    ) -> None:
        super().__init__(request, prompt, tokenizer, stop)
        self.engine_failed = False
        """Whether the request ended because the engine did: another attempt may succeed."""
        self._clock = clock
        self._events: deque[TokenEvent] = deque()
        self._news = asyncio.Event()
        self._unended = set(range(self.request.params.n))

    @property
    def has_arrived(self) -> bool:
        """Whether no further events will come, though not all of them may have been read."""
        return not self._unended

    async def next(self) -> list[StreamOutput]:
        """Return what was added since the last call; wait while that is nothing. Empty after the end."""
        while not self.finished:
            while not self._events and not self.has_arrived:
                self._news.clear()
                await self._news.wait()
            if not self._events:
                break
            events = list(self._events)
            self._events.clear()
            if pieces := self.add_all(events, self._clock()):
                return pieces
        return []

    def push(self, event: TokenEvent) -> None:
        """Append an event."""
        self._events.append(event)
        if event.finish_reason is not None:
            self._unended.discard(event.sequence_index)
        self._news.set()

    def give_up(self, index: int | None = None) -> None:
        """Expect no more events of one answer, or of all of them."""
        if index is None:
            self._unended.clear()
        else:
            self._unended.discard(index)
        self._news.set()

    def fail(self, error: str) -> None:
        """End all unfinished answers because the engine has ended."""
        self.engine_failed = True
        self.refuse(error)

    def refuse(self, error: str) -> None:
        """End all unfinished answers with an error."""
        for index in sorted(self._unended):
            self.push(TokenEvent(self.request.request_id, index, [], finish_reason=FinishReason.ERROR, error=error))
