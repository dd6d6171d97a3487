"""Answers lines with an engine in this process, as many at once as it can run."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from archerfish.api.endpoint_call import EndpointCall
from archerfish.api.endpoints import read_line
from archerfish.api.errors import ErrorReply, error_reply, failed_reply
from archerfish.api.model import ServedModel
from archerfish.engine.driver import EngineDriver, uninterrupted
from archerfish.engine.engine import Engine
from archerfish.engine.outputs import OutputStream
from archerfish.errors import UserError
from archerfish.jobs.input_lines import InputLine
from archerfish.jobs.records import LineResult, error_result, new_id
from archerfish.request import FinishReason, Request, RequestClass, TokenEvent


class AnsweredLine(NamedTuple):
    line: InputLine
    result: LineResult


@dataclass(slots=True)
class _OpenLine:
    """A line whose requests the engine has; several if the line has several prompts."""

    line: InputLine
    call: EndpointCall
    request_id: str
    written: list[OutputStream] = field(default_factory=list)


class _Open(NamedTuple):
    """One request of an open line."""

    line: _OpenLine
    written: OutputStream


class OfflineAnswers:
    """Keeps the engine's queue filled, so that no row is idle while lines are left."""

    def __init__(self, engine: Engine, model: ServedModel, most_open: int) -> None:
        """`most_open` limits the requests that the engine has at once; the last line may exceed it."""
        self._engine = engine
        self._model = model
        self._most_open = most_open
        self._open: dict[str, _Open] = {}
        """Open requests by id."""
        self._driver = EngineDriver(engine, self._take)
        self._ended: list[_OpenLine] = []
        """Lines that ended in the last step."""

    def answer(self, lines: Iterator[InputLine]) -> Iterator[AnsweredLine]:
        """Yield each line with its result, in the order of their completion. A refused line does not affect others."""
        try:
            while True:
                for line in lines:
                    refusal = self._start(line)
                    if refusal is not None:
                        yield AnsweredLine(line, error_result(refusal))
                    if len(self._open) >= self._most_open:
                        break
                if not self._open:
                    return
                yield from self._step()
        finally:
            # The caller may stop early.
            for request_id in list(self._open):
                self._engine.cancel(request_id)
            self._open.clear()

    def _start(self, line: InputLine) -> ErrorReply | None:
        """Queue the requests of a line, or return the result of a line that is refused."""
        call = read_line(self._model, line.url, line.body)
        if isinstance(call, ErrorReply):
            return call
        # The call has everything that is needed of the body.
        open_line = _OpenLine(line._replace(body=b""), call, new_id("req_"))
        try:
            self._model.processor.check_grammar(call.inputs.params.structured)
            now = self._engine.clock()
            requests = call.inputs.requests(now, open_line.request_id, request_class=RequestClass.BATCH)
            with uninterrupted():
                for request, text in zip(requests, call.inputs.prompt_texts, strict=True):
                    self._add(open_line, request, text)
        except UserError as error:
            self._drop(open_line)
            return error_reply(error)
        return None

    def _add(self, open_line: _OpenLine, request: Request, prompt: str | None) -> None:
        self._engine.add(request)
        written = OutputStream(request, prompt, self._model.processor.tokenizer, self._stop)
        open_line.written.append(written)
        self._open[request.request_id] = _Open(open_line, written)

    def _step(self) -> Iterator[AnsweredLine]:
        self._ended = []
        self._driver.step()
        for open_line in self._ended:
            yield AnsweredLine(open_line.line, _result(open_line))

    def _take(self, event: TokenEvent, now: float) -> None:
        open_request = self._open.get(event.request_id)
        if open_request is None:
            return
        open_request.written.add(event, now)
        if all(written.finished for written in open_request.line.written):
            self._drop(open_request.line)
            self._ended.append(open_request.line)

    def _drop(self, open_line: _OpenLine) -> None:
        for written in open_line.written:
            del self._open[written.request.request_id]
            self._engine.cancel(written.request.request_id)

    def _stop(self, request_id: str, index: int) -> None:
        self._engine.cancel(request_id, index, FinishReason.STOP)


def _result(open_line: _OpenLine) -> LineResult:
    for written in open_line.written:
        if written.has_failed:
            return error_result(failed_reply(written.error))
    return LineResult(200, open_line.call.reply(open_line.written), open_line.request_id)
