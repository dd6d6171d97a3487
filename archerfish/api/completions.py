"""The completions endpoint: its inputs for the engine, its replies and its chunks."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from archerfish.api.answer_grammar import structured
from archerfish.api.bodies.common import each_prompt
from archerfish.api.bodies.prompts import CompletionBody
from archerfish.api.endpoint_call import Chunk, EndpointCall
from archerfish.api.model import ServedModel
from archerfish.api.replies import (
    finite,
    new_id,
    prompt_logprobs,
    request_metrics,
    seconds_now,
    usage,
    usage_so_far,
)
from archerfish.engine.outputs import CompletionOutput, Logprobs, OutputStream, RequestOutput, StreamOutput
from archerfish.errors import InvalidParameter
from archerfish.request import SamplingParams


class CompletionsCall(EndpointCall):
    """Prompts and their continuations. The index of a choice counts through the answers to all prompts."""

    def __init__(self, model: ServedModel, body: CompletionBody) -> None:
        self._model = model
        self._body = body.without_content()
        model.check_name(body.model)
        if body.echo and body.stream:
            raise InvalidParameter("echo", True, "it cannot be combined with stream")
        # One token is the least that can be asked for; with max_tokens = 0 it is left out of the reply.
        self._shows_answer = body.max_tokens != 0
        if not self._shows_answer and not body.echo:
            raise InvalidParameter("max_tokens", 0, "without echo there is nothing to return")
        self.inputs = model.processor.inputs(
            each_prompt(body.prompt),
            self._params(body),
            add_special_tokens=body.add_special_tokens,
            repeats_prompt=body.echo,
            **body.request_fields,
        )
        self.is_streamed = bool(body.stream)
        self._offsets = [[0] * self.inputs.params.n for _ in self.inputs.prompts]
        """For each answer, the text offset behind its last log-probability."""
        self._num_generated = [[0] * self.inputs.params.n for _ in self.inputs.prompts]
        """Number of tokens in each answer so far."""
        self._outputs: Sequence[OutputStream] = ()
        self._id = new_id("cmpl")
        self._created = seconds_now()

    def reply(self, outputs: Sequence[OutputStream]) -> dict[str, Any]:
        answers = [(output.result, answer) for output in outputs for answer in output.result.outputs]
        choices = [self._choice(index, output, answer) for index, (output, answer) in enumerate(answers)]
        counted = usage(outputs)
        if not self._shows_answer:
            counted |= {"completion_tokens": 0, "total_tokens": counted["prompt_tokens"]}
        more = {"metrics": request_metrics(outputs[0])} if self._body.metrics else {}
        return {**self._head(), "choices": choices, "usage": counted, **more}

    def begin(self, outputs: Sequence[OutputStream]) -> Iterator[Chunk]:
        self._outputs = outputs
        return iter(())

    def add(self, prompt_index: int, piece: StreamOutput) -> Iterator[Chunk]:
        logprobs = None
        if piece.logprobs is not None:
            lists = _LogprobLists(self._text_of, self._body.logprobs or 0, self._offsets[prompt_index][piece.index])
            lists.add(piece.token_ids, piece.logprobs)
            self._offsets[prompt_index][piece.index] = lists.offset
            logprobs = lists.value
        choice = {
            "index": prompt_index * self.inputs.params.n + piece.index,
            "text": piece.text,
            "logprobs": logprobs,
            "finish_reason": piece.finish_reason,
            "stop_reason": piece.stop_reason,
        }
        self._num_generated[prompt_index][piece.index] += len(piece.token_ids)
        counts = {"usage": self._usage_so_far(prompt_index, piece.index)} if self._body.wants_usage else {}
        yield {**self._head(), "choices": [choice], **counts}

    def _usage_so_far(self, prompt_index: int, index: int) -> dict[str, Any] | None:
        """The counts of one answer while it is being written, if the client wants them with each chunk."""
        if not self._body.wants_continuous_usage:
            return None
        return usage_so_far(self.inputs.prompt_length(prompt_index), self._num_generated[prompt_index][index])

    def end(self) -> Iterator[Chunk]:
        """Yield usage and metrics, if the body wants them."""
        if self._body.wants_usage or self._body.metrics:
            more = {"metrics": request_metrics(self._outputs[0])} if self._body.metrics else {}
            counts = usage(self._outputs) if self._body.wants_usage else None
            yield {**self._head(), "choices": [], "usage": counts, **more}

    def _params(self, body: CompletionBody) -> SamplingParams:
        of_prompt = [body.prompt_logprobs, body.logprobs if body.echo else None]
        params = body.sampling_params(
            {"max_tokens": 16, **self._model.recommended},
            max_tokens=max(1, body.max_tokens) if body.max_tokens is not None else None,
            logprobs=body.logprobs,
            prompt_logprobs=max((count for count in of_prompt if count is not None), default=None),
            structured=structured(body, body.response_format),
        )
        return params if self._shows_answer else replace(params, min_tokens=0)

    def _choice(self, index: int, output: RequestOutput, answer: CompletionOutput) -> dict[str, Any]:
        text, logprobs = answer.text if self._shows_answer else "", None
        prompt = ""
        if self._body.echo:
            prompt = self._decoded(output.prompt_token_ids) if output.prompt is None else output.prompt
        if self._body.logprobs is not None:
            lists = _LogprobLists(self._text_of, self._body.logprobs)
            if self._body.echo:
                lists.add(output.prompt_token_ids, output.prompt_logprobs or [], self._lengths_in(output, prompt))
            if self._shows_answer:
                lists.add(answer.token_ids, answer.logprobs or [])
            logprobs = lists.value
        return {
            "index": index,
            "text": prompt + text,
            "logprobs": logprobs,
            "finish_reason": answer.finish_reason if self._shows_answer else "length",
            "stop_reason": answer.stop_reason,
            **prompt_logprobs(output, self._body.prompt_logprobs),
        }

    def _lengths_in(self, output: RequestOutput, prompt: str) -> list[int]:
        """Return the number of characters of the shown prompt for each token.

        A special token that the tokenizer put around the text is not in it.
        """
        tokenizer = self._model.processor.tokenizer
        special = frozenset() if tokenizer is None or output.prompt is None else tokenizer.special_token_ids
        lengths: list[int] = []
        offset = 0
        for token_id in output.prompt_token_ids:
            text = self._text_of(token_id)
            is_shown = token_id not in special or prompt.startswith(text, offset)
            lengths.append(len(text) if is_shown else 0)
            offset += lengths[-1]
        return lengths

    def _decoded(self, token_ids: list[int]) -> str:
        tokenizer = self._model.processor.tokenizer
        return "" if tokenizer is None else tokenizer.decode(token_ids, skip_special_tokens=False)

    def _text_of(self, token_id: int) -> str:
        tokenizer = self._model.processor.tokenizer
        return str(token_id) if tokenizer is None else tokenizer.token_text(token_id)

    def _head(self) -> dict[str, Any]:
        return {"id": self._id, "object": "text_completion", "created": self._created, "model": self._model.name}


class _LogprobLists:
    """Log-probabilities in the four lists of this endpoint."""

    def __init__(self, text_of: Callable[[int], str], num_top: int, offset: int = 0) -> None:
        self.value: dict[str, list[Any]] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        self.offset = offset
        self._text_of = text_of
        self._num_top = num_top

    def add(
        self, token_ids: Sequence[int], entries: Sequence[Logprobs | None], lengths: Sequence[int] | None = None
    ) -> None:
        """`lengths` are those of the tokens in the shown text, where they differ from those of their own texts."""
        for index, (token, candidates) in enumerate(zip(token_ids, entries, strict=True)):
            text = self._text_of(token) if candidates is None else candidates[token].decoded_token
            self.value["tokens"].append(text)
            self.value["text_offset"].append(self.offset)
            self.offset += len(text) if lengths is None else lengths[index]
            if candidates is None:
                self.value["token_logprobs"].append(None)
                self.value["top_logprobs"].append(None)
                continue
            self.value["token_logprobs"].append(finite(candidates[token].logprob))
            top: dict[str, float] = {}
            # The engine may have returned more of them, for another field.
            shown = (
                candidate
                for token_id, candidate in candidates.items()
                if token_id == token or candidate.rank <= self._num_top
            )
            for candidate in sorted(shown, key=lambda candidate: candidate.rank):
                top.setdefault(candidate.decoded_token, finite(candidate.logprob))  # Several tokens may have one text.
            self.value["top_logprobs"].append(top)
