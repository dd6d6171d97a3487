"""/v1/completions."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from archerfish.engine.outputs import CompletionOutput, Logprobs
from archerfish.errors import InvalidParameter
from archerfish.request import SamplingParams
from archerfish.server.answers import Answer, merged, unless_disconnected
from archerfish.server.bodies.completions import CompletionBody
from archerfish.server.replies import json_reply, new_id, request_metrics, seconds_now, usage
from archerfish.server.requests import LimitedRoute
from archerfish.server.service import Service, service_of
from archerfish.server.sse import DONE, EventResponse, event
from archerfish.server.structure import structured

router = APIRouter(route_class=LimitedRoute)


@router.post("/v1/completions")
async def completions(body: CompletionBody, http: Request) -> Response:
    """Continue prompts."""
    service = service_of(http)
    completion = Completion(service, body)
    answers = service.open_all(http, body.prompts, completion.params, body, add_special_tokens=body.add_special_tokens)
    try:
        if body.stream:
            return EventResponse(completion.stream(answers), answers[0].headers)
        await unless_disconnected(http, _complete(answers))
        return json_reply(completion.reply(answers), answers[0].headers)
    finally:
        if not body.stream:
            _close(answers)


async def _complete(answers: Sequence[Answer]) -> None:
    for answer in answers:
        await answer.complete()


def _close(answers: Sequence[Answer]) -> None:
    for answer in answers:
        answer.close()


class Completion:
    """Prompts and how their continuations are told. A choice's index counts through all prompts' answers."""

    def __init__(self, service: Service, body: CompletionBody) -> None:
        self._service = service
        self._body = body
        service.check_model(body.model)
        if body.echo and body.stream:
            raise InvalidParameter("echo", True, "it does not go with stream")
        # One token is the least that can be asked for; with max_tokens = 0 it is left out of the reply.
        self._shows_answer = body.max_tokens != 0
        if not self._shows_answer and not body.echo:
            raise InvalidParameter("max_tokens", 0, "with nothing to write there must be an echo")
        self.params: SamplingParams = body.sampling_params(
            {"max_tokens": 16, **service.recommended},
            max_tokens=max(1, body.max_tokens) if body.max_tokens is not None else None,
            logprobs=body.logprobs,
            prompt_logprobs=body.logprobs if body.echo else None,
            structured=structured(body.response_format),
        )
        if not self._shows_answer:
            self.params = replace(self.params, min_tokens=0)
        self._id = new_id("cmpl")
        self._created = seconds_now()

    def reply(self, answers: Sequence[Answer]) -> dict[str, Any]:
        choices = [
            self._choice(place * self.params.n + one.index, answer, one)
            for place, answer in enumerate(answers)
            for one in answer.output.outputs
        ]
        counted = usage([answer.output for answer in answers])
        if not self._shows_answer:
            counted |= {"completion_tokens": 0, "total_tokens": counted["prompt_tokens"]}
        more = {"metrics": request_metrics(answers[0])} if self._body.metrics else {}
        return {**self._head(), "choices": choices, "usage": counted, **more}

    async def stream(self, answers: Sequence[Answer]) -> AsyncIterator[bytes]:
        head, with_usage = self._head(), self._body.wants_usage
        nothing: dict[str, Any] = {"usage": None} if with_usage else {}
        offsets = [[0] * self.params.n for _ in answers]
        try:
            async for place, pieces in merged(answers):
                for piece in pieces:
                    if piece.finish_reason == "error":
                        yield event(answers[place].failure(piece.error).body)
                        return
                    logprobs = None
                    if piece.logprobs is not None:
                        logprobs = _Told(self._text_of, offsets[place][piece.index])
                        logprobs.add(piece.token_ids, piece.logprobs)
                        offsets[place][piece.index] = logprobs.offset
                    choice = {
                        "index": place * self.params.n + piece.index,
                        "text": piece.text,
                        "logprobs": None if logprobs is None else logprobs.value,
                        "finish_reason": piece.finish_reason,
                        "stop_reason": piece.stop_reason,
                    }
                    yield event({**head, "choices": [choice], **nothing})
            if with_usage:
                yield event({**head, "choices": [], "usage": usage([answer.output for answer in answers])})
            yield DONE
        finally:
            _close(answers)

    def _choice(self, index: int, answer: Answer, one: CompletionOutput) -> dict[str, Any]:
        output = answer.output
        text, logprobs = one.text if self._shows_answer else "", None
        if self._body.echo:
            prompt = output.prompt
            text = (self._decoded(output.prompt_token_ids) if prompt is None else prompt) + text
        if self._body.logprobs is not None:
            told = _Told(self._text_of, 0)
            if self._body.echo:
                told.add(output.prompt_token_ids, output.prompt_logprobs or [])
            if self._shows_answer:
                told.add(one.token_ids, one.logprobs or [])
            logprobs = told.value
        return {
            "index": index,
            "text": text,
            "logprobs": logprobs,
            "finish_reason": one.finish_reason if self._shows_answer else "length",
            "stop_reason": one.stop_reason,
        }

    def _decoded(self, token_ids: list[int]) -> str:
        tokenizer = self._service.intake.tokenizer
        return "" if tokenizer is None else tokenizer.decode(token_ids, skip_special_tokens=False)

    def _text_of(self, token_id: int) -> str:
        tokenizer = self._service.intake.tokenizer
        return str(token_id) if tokenizer is None else tokenizer.token_text(token_id)

    def _head(self) -> dict[str, Any]:
        name = self._service.model_name
        return {"id": self._id, "object": "text_completion", "created": self._created, "model": name}


class _Told:
    """Log-probabilities in the four lists of this endpoint."""

    def __init__(self, text_of: Any, offset: int) -> None:
        self.value: dict[str, list[Any]] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        self.offset = offset
        self._text_of = text_of

    def add(self, token_ids: Sequence[int], entries: Sequence[Logprobs | None]) -> None:
        for token, candidates in zip(token_ids, entries, strict=True):
            text = self._text_of(token) if candidates is None else candidates[token].decoded_token
            self.value["tokens"].append(text)
            self.value["text_offset"].append(self.offset)
            self.offset += len(text)
            if candidates is None:
                self.value["token_logprobs"].append(None)
                self.value["top_logprobs"].append(None)
                continue
            self.value["token_logprobs"].append(candidates[token].logprob)
            top: dict[str, float] = {}
            for one in sorted(candidates.values(), key=lambda one: one.rank):
                top.setdefault(one.decoded_token, one.logprob)  # Several tokens may have one text.
            self.value["top_logprobs"].append(top)
