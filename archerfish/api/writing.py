"""One request's answers as they grow. Knows no engine: events are given to it."""

from array import array
from bisect import bisect_right
from collections.abc import Iterable

from archerfish.engine.outputs import Collector, RequestOutput, StopSequence, StreamOutput
from archerfish.metrics.requests import Usage
from archerfish.request import FinishReason, Request, TokenEvent
from archerfish.tokenizer import Tokenizer


class Writing:
    """The answers of a request, and when their tokens came."""

    def __init__(self, request: Request, prompt: str | None, tokenizer: Tokenizer | None, stop: StopSequence) -> None:
        """`stop` is called for an answer that is complete although the engine does not know it yet."""
        self.request = request
        self._collector = Collector(request, prompt, tokenizer, stop)
        self.gaps: list[float] = []
        """Seconds between arrivals of tokens."""
        self._last_arrival: float | None = None
        self._counts = [array("l") for _ in range(request.params.n)]
        """Of each answer: how many tokens it had after each piece."""
        self._times = [array("d") for _ in range(request.params.n)]
        """When each piece came."""

    @property
    def output(self) -> RequestOutput:
        """As far as it has come."""
        return self._collector.output

    @property
    def finished(self) -> bool:
        return self._collector.finished

    @property
    def has_failed(self) -> bool:
        return any(answer.finish_reason == FinishReason.ERROR.value for answer in self.output.outputs)

    @property
    def error(self) -> str | None:
        """Why it failed, if that is known."""
        return next((answer.error for answer in self.output.outputs if answer.error is not None), None)

    @property
    def usage(self) -> Usage:
        output = self.output
        num_generated = output.metrics.num_generated_tokens  # With those of answers that best_of left out.
        return Usage(len(output.prompt_token_ids), num_generated, output.num_cached_tokens)

    @property
    def size(self) -> int:
        """How many numbers and texts a reply holds of it: tokens, their alternatives, values of an embedding."""
        output = self.output
        entries = [*(answer.logprobs or () for answer in output.outputs), output.prompt_logprobs or ()]
        num_values = self.usage.num_generated_tokens + len(output.prompt_embedding or ())
        return num_values + sum(len(entry or ()) for part in entries for entry in part)

    def whole(self, index: int) -> StreamOutput:
        """One of the answers as a single piece."""
        one = self.output.outputs[index]
        return StreamOutput(index, one.text, one.token_ids, one.logprobs, one.finish_reason, one.stop_reason)

    def time_behind(self, index: int, num_tokens: int) -> float | None:
        """When an answer first had more than so many tokens; None if it never had."""
        place = bisect_right(self._counts[index], num_tokens)
        return self._times[index][place] if place < len(self._times[index]) else None

    def add(self, events: Iterable[TokenEvent], now: float) -> list[StreamOutput]:
        """Take in events that came together; what they add."""
        pieces = []
        for event in events:
            if (piece := self._collector.add(event, now)) is not None:
                self._counts[piece.index].append(len(self.output.outputs[piece.index].token_ids))
                self._times[piece.index].append(now)
                pieces.append(piece)
        if pieces:
            if self._last_arrival is not None:
                self.gaps.append(now - self._last_arrival)
            self._last_arrival = now
        return pieces
