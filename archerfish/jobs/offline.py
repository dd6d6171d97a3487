"""Answers lines with an engine in this process, as many at once as it can take. Knows no files and no store."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from archerfish.engine.build import Assembly
from archerfish.engine.interrupts import uninterrupted
from archerfish.engine.outputs import Collector, RequestOutput
from archerfish.errors import InvalidParameter, StepFailed, UserError
from archerfish.jobs.bodies import BodyRequest, read_body
from archerfish.jobs.records import LineResult, error_body, new_id
from archerfish.jobs.replies import chat_reply, completion_reply
from archerfish.jobs.validate import InputLine
from archerfish.request import FinishReason, Request, RequestClass

_LONGEST_MESSAGE = 2000  # A refused value may be a whole document.


class AnsweredLine(NamedTuple):
    line: InputLine
    result: LineResult


@dataclass(slots=True)
class _OpenLine:
    """A line whose requests are with the engine; several where it has several prompts."""

    line: InputLine
    body: BodyRequest
    collectors: list[Collector] = field(default_factory=list)


class OfflineAnswers:
    """Keeps the engine's queue filled, so that no row stands empty while there are lines left."""

    def __init__(self, assembly: Assembly, model: str, clock: Callable[[], float] = time.time) -> None:
        """Bodies that name another model are refused. `clock` tells seconds since 1970."""
        self._engine = assembly.engine
        self._intake = assembly.intake
        self._recommended = assembly.recommended
        self._most_open = 2 * assembly.config.max_num_seqs
        self._model = model
        self._clock = clock
        self._open: dict[str, _OpenLine] = {}
        """By the id of each request."""
        self._num_requests = 0

    def answer(self, lines: Iterator[InputLine]) -> Iterator[AnsweredLine]:
        """Each line with its result, as they come. A line that is refused disturbs no other."""
        try:
            while True:
                for line in lines:
                    refusal = self._start(line)
                    if refusal is not None:
                        yield AnsweredLine(line, refusal)
                    if len(self._open) >= self._most_open:
                        break
                if not self._open:
                    return
                yield from self._step()
        finally:
            # Whoever reads this may stop early.
            for request_id in list(self._open):
                self._engine.cancel(request_id)
            self._open.clear()

    def _start(self, line: InputLine) -> LineResult | None:
        """Queue a line's requests; or say why not."""
        try:
            body = read_body(line.url, line.body, recommended=self._recommended, model=self._model)
            requests = self._requests(body)
        except UserError as error:
            return _refusal(error)
        open_line = _OpenLine(line, body)
        with uninterrupted():
            for request, text in requests:
                try:
                    self._engine.add(request)
                except UserError as error:
                    self._drop(open_line)
                    return _refusal(error)
                open_line.collectors.append(Collector(request, text, self._intake.tokenizer, self._stop))
                self._open[request.request_id] = open_line
        return None

    def _requests(self, body: BodyRequest) -> list[tuple[Request, str | None]]:
        """The requests of a body, each with its prompt where that is a text."""
        if body.messages is None:
            return [
                (self._request(prompt, body), prompt if isinstance(prompt, str) else None) for prompt in body.prompts
            ]
        text = self._intake.chat_text(body.messages)
        # The template has already written the special tokens.
        return [(self._request(text, body, add_special_tokens=False), text)]

    def _request(self, prompt: str | list[int], body: BodyRequest, **more: Any) -> Request:
        self._num_requests += 1
        request_id = f"line-{self._num_requests}"
        return self._intake.request(
            prompt, body.params, request_id=request_id, request_class=RequestClass.BATCH, **more
        )

    def _step(self) -> Iterator[AnsweredLine]:
        ended: list[_OpenLine] = []
        with uninterrupted():
            events = self._engine.step()
            now = self._engine.clock()
            for event in events:
                open_line = self._open.get(event.request_id)
                if open_line is None:
                    continue
                for collector in open_line.collectors:
                    if collector.output.request_id == event.request_id:
                        collector.add(event, now)
                if all(collector.finished for collector in open_line.collectors):
                    self._drop(open_line)
                    ended.append(open_line)
        if self._engine.stopped is not None:
            raise StepFailed(self._engine.stopped)
        for open_line in ended:
            yield AnsweredLine(open_line.line, self._result(open_line))

    def _drop(self, open_line: _OpenLine) -> None:
        for collector in open_line.collectors:
            del self._open[collector.output.request_id]
            self._engine.cancel(collector.output.request_id)

    def _stop(self, request_id: str, index: int) -> None:
        self._engine.cancel(request_id, index, FinishReason.STOP)

    def _result(self, open_line: _OpenLine) -> LineResult:
        outputs = [collector.output for collector in open_line.collectors]
        request_id = new_id("req_")
        error = _first_error(outputs)
        if error is not None:
            return LineResult(500, error_body(error, "server_error", code="engine_error"), request_id)
        named: dict[str, Any] = {"model": self._model, "created": int(self._clock())}
        named["num_top"] = open_line.body.params.logprobs or 0
        if open_line.body.messages is not None:
            return LineResult(200, chat_reply(outputs[0], reply_id=new_id("chatcmpl-"), **named), request_id)
        return LineResult(200, completion_reply(outputs, reply_id=new_id("cmpl-"), **named), request_id)


def _first_error(outputs: list[RequestOutput]) -> str | None:
    for output in outputs:
        for answer in output.outputs:
            if answer.finish_reason == FinishReason.ERROR.value:
                return answer.error or "the answer could not be completed"
    return None


def _refusal(error: UserError) -> LineResult:
    message = str(error)
    if len(message) > _LONGEST_MESSAGE:
        message = message[:_LONGEST_MESSAGE] + "..."
    param = error.name if isinstance(error, InvalidParameter) else None
    return LineResult(400, error_body(message, "invalid_request_error", param=param), new_id("req_"))
