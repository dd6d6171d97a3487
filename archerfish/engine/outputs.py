"""What a caller gets back, in the shape vLLM's users know, and the collector that builds it from token events."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

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
"""(request id, index): the answer is complete, although the engine does not know it yet."""


class Collector:
    """Gathers one request's events: text without split characters, stop strings, log-probabilities, times."""

    def __init__(self, request: Request, prompt: str | None, tokenizer: Tokenizer | None, stop: StopSequence) -> None:
        params = request.params
        self._tokenizer = tokenizer
        self._stop = stop
        self._include_stop = params.include_stop_str_in_output
        self._best = request.best
        self.output = RequestOutput(
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

    @property
    def finished(self) -> bool:
        return self.output.finished

    def add(self, event: TokenEvent, now: float) -> StreamOutput | None:
        """Take in one event; what it adds, or None if its answer was already complete, or is yet to be compared."""
        if self.finished:
            return None
        answer = self.output.outputs[event.sequence_index]
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
            self.output.metrics.record_tokens(len(token_ids), now)
        if event.num_draft_tokens:
            self.output.metrics.record_drafts(event.num_draft_tokens, event.num_accepted_tokens)
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
        if self.output.finished:
            self.output.metrics.finished_time = now
            if self._best is not None:
                self._choose(self._best)
        if self._best is not None:
            return None  # Which answers are returned is known only when all are there.
        return StreamOutput(
            event.sequence_index, text, token_ids, logprobs, answer.finish_reason, answer.stop_reason, answer.error
        )

    def _with_text(self, event: TokenEvent) -> list[int]:
        """The tokens that are part of the text: a stop token ends it, as a stop text does."""
        ends_by_token = event.finish_reason is FinishReason.STOP
        return event.token_ids[:-1] if ends_by_token and not self._include_stop else event.token_ids

    def _record_start(self, event: TokenEvent) -> None:
        if event.scheduled_time is not None and self.output.metrics.scheduled_time is None:
            self.output.metrics.scheduled_time = event.scheduled_time
            self.output.num_cached_tokens = event.num_cached_tokens
        if event.prompt_embedding is not None:
            self.output.prompt_embedding = event.prompt_embedding
        if event.prompt_states is not None:
            self.output.prompt_states = event.prompt_states
        if event.prompt_logprobs and event.sequence_index == 0 and self.output.prompt_logprobs is not None:
            self.output.prompt_logprobs += [self._logprobs(entry) for entry in event.prompt_logprobs]

    def _add_logprobs(
        self, answer: CompletionOutput, entries: list[TokenLogprobs] | None, count: int
    ) -> list[Logprobs] | None:
        if answer.logprobs is None or answer.cumulative_logprob is None:
            return None
        kept = (entries or [])[:count]
        logprobs = [self._logprobs(entry) for entry in kept]
        answer.logprobs += logprobs
        answer.cumulative_logprob += sum(entry.logprob for entry in kept)
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
        whole = [answer for answer in self.output.outputs if answer.finish_reason != FinishReason.ERROR.value]
        ranked = sorted(whole or self.output.outputs, key=_mean_logprob, reverse=True)
        self.output.outputs = [replace(answer, index=index) for index, answer in enumerate(ranked[: best.num_answers])]
        if not best.shows_logprobs:
            for answer in self.output.outputs:
                answer.logprobs = answer.cumulative_logprob = None

    def _finish(self, answer: CompletionOutput, reason: FinishReason, stop_reason: int | str | None) -> None:
        answer.finish_reason = reason.value
        answer.stop_reason = stop_reason
        self.output.finished = all(output.finish_reason is not None for output in self.output.outputs)
