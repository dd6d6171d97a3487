"""The chat completions endpoint: its inputs for the engine, its replies and its chunks."""

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

from archerfish.api.answer_grammar import structured
from archerfish.api.answers import (
    AnswerReader,
    CallArguments,
    CallStart,
    Content,
    Delta,
    InvalidCall,
    ParsedAnswer,
    Reasoning,
    as_field,
)
from archerfish.api.bodies.chat import ChatBody, NamedToolChoice
from archerfish.api.bodies.prompts import TokenizeBody
from archerfish.api.conversation import Conversation, ReasoningOptions
from archerfish.api.endpoint_call import Chunk, EndpointCall
from archerfish.api.model import ServedModel
from archerfish.api.replies import (
    new_id,
    prompt_logprobs,
    request_metrics,
    seconds_now,
    token_logprobs,
    usage,
    usage_so_far,
)
from archerfish.engine.outputs import CompletionOutput, Logprobs, OutputStream, StreamOutput
from archerfish.errors import InvalidParameter

_FIELDS_OF_THEIR_OWN = {"messages", "tools", "add_generation_prompt", "continue_final_message"}


class ChatCall(EndpointCall):
    """One conversation and the answers to it."""

    def __init__(self, model: ServedModel, body: ChatBody) -> None:
        self._model = model
        self._body = body.without_content()
        model.check_name(body.model)
        _check(body)
        self._conversation = Conversation(
            model,
            [message.model_dump(exclude_none=True) for message in body.messages],
            tools=body.tools or None,
            tool_choice=body.tool_choice.model_dump()
            if isinstance(body.tool_choice, NamedToolChoice)
            else body.tool_choice,
            parallel=body.parallel_tool_calls is not False,
            structured=structured(body, body.response_format),
            template=template_variables(body),
            thinking=ReasoningOptions(effort=body.reasoning_effort, max_tokens=body.thinking_token_budget),
        )
        params = self._conversation.params(
            body,
            max_tokens=body.max_completion_tokens or body.max_tokens,
            logprobs=(body.top_logprobs or 0) if body.logprobs else None,
        )
        self.inputs = self._conversation.inputs(body, params, add_special_tokens=body.add_special_tokens)
        self.is_streamed = bool(body.stream)
        self._num_generated = [0] * params.n
        """Number of tokens in each answer so far."""
        self._outputs: Sequence[OutputStream] = ()
        self._id = new_id("chatcmpl")
        self._created = seconds_now()

    @cached_property
    def _readers(self) -> list[AnswerReader]:
        """One reader for each answer, made when the first piece is read."""
        return [self._conversation.reader(self._body) for _ in range(self.inputs.params.n)]

    def reply(self, outputs: Sequence[OutputStream]) -> dict[str, Any]:
        [output] = outputs
        return {
            **self._head("chat.completion"),
            "choices": [self._choice(answer) for answer in output.result.outputs],
            "usage": usage(outputs, self._conversation.measure(output)),
            **prompt_logprobs(output.result, self._body.prompt_logprobs),
            **({"metrics": request_metrics(output)} if self._body.metrics else {}),
        }

    # -- chunk by chunk -------------------------------------------------------------------------------------------

    def begin(self, outputs: Sequence[OutputStream]) -> Iterator[Chunk]:
        self._outputs = outputs
        for index in range(self.inputs.params.n):
            delta = {"role": "assistant", "content": ""}
            yield self._chunk({"index": index, "delta": delta, "logprobs": None, "finish_reason": None})

    def add(self, prompt_index: int, piece: StreamOutput) -> Iterator[Chunk]:
        """Yield text, parts of tool calls, and at last the finish reason."""
        reader = self._readers[piece.index]
        self._num_generated[piece.index] += len(piece.token_ids)
        read = reader.feed(piece.text)
        if piece.finish_reason is not None:
            read += reader.finish()
        deltas = [_delta(delta) for delta in read if self._is_shown(delta)]
        logprobs = self._logprobs(piece.token_ids, piece.logprobs)
        for number, delta in enumerate(deltas or ([{}] if logprobs else [])):
            # All log-probabilities of a piece come with its first delta.
            choice = {"index": piece.index, "delta": delta, "logprobs": None if number else logprobs}
            yield self._chunk({**choice, "finish_reason": None})
        if piece.finish_reason is not None:
            reason = self._finish_reason(piece.finish_reason, reader)
            end = {"index": piece.index, "delta": {}, "logprobs": None, "finish_reason": reason}
            yield self._chunk({**end, "stop_reason": _stop_reason(piece.stop_reason, reader)})

    def end(self) -> Iterator[Chunk]:
        """Yield usage and metrics, if the body wants them."""
        [output] = self._outputs
        num_reasoning = self._conversation.measure(output)
        with_usage = self._body.wants_usage
        if with_usage or self._body.metrics:
            more = {"metrics": request_metrics(output)} if self._body.metrics else {}
            counts = usage([output], num_reasoning) if with_usage else None
            yield {**self._head("chat.completion.chunk"), "choices": [], "usage": counts, **more}

    def _chunk(self, choice: dict[str, Any]) -> Chunk:
        counts = {"usage": self._usage_so_far(choice["index"])} if self._body.wants_usage else {}
        return {**self._head("chat.completion.chunk"), "choices": [choice], **counts}

    def _usage_so_far(self, index: int) -> dict[str, Any] | None:
        """The counts of one answer while it is being written, if the client wants them with each chunk."""
        if not self._body.wants_continuous_usage:
            return None
        return usage_so_far(self.inputs.prompt_length(), self._num_generated[index])

    # -- both -----------------------------------------------------------------------------------------------------

    def _choice(self, answer: CompletionOutput) -> dict[str, Any]:
        reader = self._readers[answer.index]
        return {
            "index": answer.index,
            "message": _message(reader.read(answer.text), shows_reasoning=self._body.include_reasoning),
            "logprobs": self._logprobs(answer.token_ids, answer.logprobs),
            "finish_reason": self._finish_reason(answer.finish_reason, reader),
            "stop_reason": _stop_reason(answer.stop_reason, reader),
        }

    def _is_shown(self, delta: Delta) -> bool:
        return self._body.include_reasoning or not isinstance(delta, Reasoning)

    def _logprobs(self, token_ids: list[int], entries: list[Logprobs] | None) -> dict[str, Any] | None:
        if entries is None:
            return None
        return {"content": token_logprobs(token_ids, entries, self._body.top_logprobs or 0)}

    def _finish_reason(self, reason: str | None, reader: AnswerReader) -> str | None:
        # Calling the function that the request named is no reason to end. As in OpenAI's API.
        called = reader.has_calls and not self._conversation.names_function
        return "tool_calls" if called and reason == "stop" else reason

    def _head(self, kind: str) -> dict[str, Any]:
        head = {"id": self._id, "object": kind, "created": self._created, "model": self._model.name}
        return head if self._body.service_tier is None else {**head, "service_tier": "default"}


def template_variables(body: ChatBody | TokenizeBody) -> dict[str, Any]:
    """Return the variables of the chat template besides messages and tools."""
    for name in _FIELDS_OF_THEIR_OWN & body.chat_template_kwargs.keys():
        raise InvalidParameter(f"chat_template_kwargs.{name}", "...", f"give it as {name}")
    return {
        "add_generation_prompt": body.add_generation_prompt and not body.continue_final_message,
        "continue_final_message": body.continue_final_message,
        **body.chat_template_kwargs,
    }


def _check(body: ChatBody) -> None:
    """Raise if two fields contradict each other."""
    if body.top_logprobs and not body.logprobs:
        raise InvalidParameter("top_logprobs", body.top_logprobs, "it needs logprobs = true")
    if body.max_tokens is not None and body.max_completion_tokens is not None:
        raise InvalidParameter("max_tokens", body.max_tokens, "give it or max_completion_tokens, not both")


def _stop_reason(reason: int | str | None, reader: AnswerReader) -> int | str | None:
    """Explains an answer without text or calls to clients that know no field of invalid calls."""
    return "invalid_tool_call" if reason is None and reader.has_invalid_calls else reason


def _message(answer: ParsedAnswer, *, shows_reasoning: bool) -> dict[str, Any]:
    more: dict[str, Any] = as_field(answer.invalid_calls)
    if answer.reasoning and shows_reasoning:
        more |= {"reasoning": answer.reasoning, "reasoning_content": answer.reasoning}
    calls = [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in answer.calls
    ]
    if calls:
        return {"role": "assistant", "content": answer.content or None, "tool_calls": calls, **more}
    return {"role": "assistant", "content": (answer.content or None) if answer.reasoning else answer.content, **more}


def _delta(delta: Delta) -> dict[str, Any]:
    match delta:
        case Content(text):
            return {"content": text}
        case Reasoning(text):
            return {"reasoning": text, "reasoning_content": text}  # One for vLLM's clients, one for DeepSeek's.
        case InvalidCall():
            return as_field([delta])
        case CallStart(index, call_id, name):
            function = {"name": name, "arguments": ""}
            return {"tool_calls": [{"index": index, "id": call_id, "type": "function", "function": function}]}
        case CallArguments(index, text):
            return {"tool_calls": [{"index": index, "function": {"arguments": text}}]}
