"""Runs requests on an engine in this process, until they end or as they grow."""

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from archerfish.console import progress_bar
from archerfish.engine.driver import EngineDriver, uninterrupted
from archerfish.engine.engine import Engine
from archerfish.engine.outputs import OutputStream, RequestOutput, StreamOutput
from archerfish.errors import InvalidParameter
from archerfish.request import FinishReason, Request, TokenEvent
from archerfish.tokenizer import Tokenizer

Progress = bool | Callable[..., Any]
"""Whether to show a bar, or a function that makes one."""


class RequestRunner:
    """Steps an engine for its open requests, and gathers their outputs."""

    def __init__(self, engine: Engine, tokenizer: Tokenizer | None) -> None:
        self._engine = engine
        self._tokenizer = tokenizer
        self._open: dict[str, _Open] = {}
        self._driver = EngineDriver(engine, self._take)
        self._ended: list[str] = []
        """Requests that ended in the last step."""

    def run(self, requests: list[Request], prompts: list[str | None], progress: Progress) -> list[RequestOutput]:
        """Return the complete outputs of requests; `prompts` are the texts that outputs show."""
        started, generated_before = self._engine.clock(), self._engine.counts.num_generated_tokens
        opened: list[_Open] = []
        try:
            for request, prompt in zip(requests, prompts, strict=True):
                opened.append(self._start(request, prompt))
            unfinished = {request.request_id for request in requests}
            with progress_bar("answering", len(opened), progress) as bar:
                while unfinished:
                    unfinished.difference_update(self._step())
                    generated = self._engine.counts.num_generated_tokens - generated_before
                    rate = generated / max(self._engine.clock() - started, 1e-9)
                    bar.update(len(opened) - len(unfinished), f"{rate:,.0f} tokens/s")
        finally:
            # An error or an interrupt must not leave half-written answers running.
            for request in requests:
                self._close(request.request_id)
        return [open_request.output.result for open_request in opened]

    def stream(self, request: Request, prompt: str | None) -> Iterator[StreamOutput]:
        """Yield what each step adds to a request. Leaving the loop early cancels it."""
        if request.best is not None:
            allowed = "answers are compared when all of them are complete; use generate"
            raise InvalidParameter("best_of", request.params.n, allowed)
        open_request = self._start(request, prompt, streams=True)
        pieces = open_request.pieces
        assert pieces is not None
        try:
            while pieces or not open_request.output.finished:
                if pieces:
                    yield pieces.popleft()
                else:
                    self._step()
        finally:
            self._close(request.request_id)

    def _start(self, request: Request, prompt: str | None, *, streams: bool = False) -> "_Open":
        with uninterrupted():
            self._engine.add(request)
            output = OutputStream(request, prompt, self._tokenizer, self._stop_sequence)
            open_request = self._open[request.request_id] = _Open(output, deque() if streams else None)
            return open_request

    def _step(self) -> list[str]:
        """Run one step for all open requests and return those that ended; pieces of streams wait for their readers."""
        self._ended = []
        self._driver.step()
        return self._ended

    def _take(self, event: TokenEvent, now: float) -> None:
        open_request = self._open.get(event.request_id)
        if open_request is None:
            return
        piece = open_request.output.add(event, now)
        if open_request.pieces is not None and piece is not None:
            open_request.pieces.append(piece)
        if open_request.output.finished:
            self._ended.append(event.request_id)

    def _stop_sequence(self, request_id: str, index: int) -> None:
        self._engine.cancel(request_id, index, FinishReason.STOP)

    def _close(self, request_id: str) -> None:
        with uninterrupted():
            self._open.pop(request_id, None)
            self._engine.cancel(request_id)
            if not self._open:
                # There may be no further step for long: steps in flight would hold their blocks for no request.
                self._engine.settle()


class _Open(NamedTuple):
    output: OutputStream
    pieces: deque[StreamOutput] | None
    """Output that steps added and the caller has not read yet; None for requests that are not streamed, whose pieces
    would be most of what Python's garbage collector has to look at."""
