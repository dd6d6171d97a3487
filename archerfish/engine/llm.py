"""The offline face of the engine: a model in this process, used from Python."""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from os import PathLike
from typing import Any, NamedTuple, TypeVar, cast

from archerfish.config.load import check_settings
from archerfish.console import ProgressBar, enable_logging
from archerfish.engine.build import Assembly, build
from archerfish.engine.intake import Message, Prompt
from archerfish.engine.outputs import Collector, RequestOutput, StreamOutput
from archerfish.errors import InvalidParameter, StepFailed
from archerfish.request import FinishReason, Request, RequestClass, SamplingParams

T = TypeVar("T")


class LLM:
    """A model that answers prompts, many at once.

        llm = LLM("path/to/model")
        for output in llm.generate(["Once upon a time", "The sea"], SamplingParams(temperature=0, max_tokens=32)):
            print(output.outputs[0].text)

    Settings are those of the command line with underscores: LLM(model, max_model_len=4096). Not for use from several
    threads at once.
    """

    def __init__(self, model: str | PathLike[str] | None = None, **settings: Any) -> None:
        config = check_settings({"model": model, **settings})
        enable_logging()
        self._assembly: Assembly = build(config)
        self._engine = self._assembly.engine
        self._intake = self._assembly.intake
        self._open: dict[str, _Open] = {}
        self._num_requests = 0

    # -- what users call ------------------------------------------------------------------------------------------

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        priority: Sequence[int] | None = None,
        request_class: RequestClass = RequestClass.ONLINE,
        cache_salt: str = "",
        progress: bool = True,
    ) -> list[RequestOutput]:
        """Answer every prompt, text or token ids; outputs come in the prompts' order.

        A prompt that cannot be served raises before any is started. A request that fails on the way has finish_reason
        "error" and does not disturb the others; if the engine itself fails, StepFailed says why.
        """
        listed = _as_prompts(prompts)
        chosen = _as_many(params if params is not None else self.default_sampling_params(), len(listed), "params")
        priorities = _as_many(0 if priority is None else priority, len(listed), "priority")
        requests = [
            self._request(prompt, one, request_class=request_class, priority=rank, cache_salt=cache_salt)
            for prompt, one, rank in zip(listed, chosen, priorities, strict=True)
        ]
        texts = [prompt if isinstance(prompt, str) else None for prompt in listed]
        return self._run(requests, texts, progress=progress)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        template_variables: Mapping[str, Any] | None = None,
        progress: bool = True,
    ) -> list[RequestOutput]:
        """Answer a conversation, or each of several."""
        conversations = _as_conversations(messages)
        chosen = _as_many(
            params if params is not None else self.default_sampling_params(), len(conversations), "params"
        )
        texts = [
            self._intake.chat_text(
                conversation,
                tools=tools,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
                **(template_variables or {}),
            )
            for conversation in conversations
        ]
        # The template has already written the special tokens.
        requests = [self._request(t, p, add_special_tokens=False) for t, p in zip(texts, chosen, strict=True)]
        return self._run(requests, list(texts), progress=progress)

    def stream(self, prompt: Prompt, params: SamplingParams | None = None) -> Iterator[StreamOutput]:
        """Yield what each step adds, as it comes. Leaving the loop early cancels the request."""
        params = params if params is not None else self.default_sampling_params()
        return self._stream(self._request(prompt, params), prompt if isinstance(prompt, str) else None)

    def stream_chat(self, messages: Sequence[Message], params: SamplingParams | None = None) -> Iterator[StreamOutput]:
        """The same for a conversation."""
        params = params if params is not None else self.default_sampling_params()
        text = self._intake.chat_text(messages)
        return self._stream(self._request(text, params, add_special_tokens=False), text)

    def default_sampling_params(self) -> SamplingParams:
        """What the model's generation_config.json recommends."""
        return SamplingParams.from_dict(self._assembly.recommended)

    @property
    def assembly(self) -> Assembly:
        """The engine and its parts, for measuring and inspection."""
        return self._assembly

    def close(self) -> None:
        """Free the model and its cache."""
        self._engine.close()

    def __enter__(self) -> "LLM":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- running --------------------------------------------------------------------------------------------------

    def _request(self, prompt: Prompt, params: SamplingParams, **more: Any) -> Request:
        self._num_requests += 1
        return self._intake.request(prompt, params, request_id=str(self._num_requests - 1), **more)

    def _start(self, request: Request, prompt: str | None) -> "_Open":
        self._engine.add(request)
        collector = Collector(request, prompt, self._intake.tokenizer, self._stop_sequence)
        self._open[request.request_id] = _Open(collector, deque())
        return self._open[request.request_id]

    def _run(self, requests: list[Request], prompts: list[str | None], *, progress: bool) -> list[RequestOutput]:
        started, generated_before = self._engine.clock(), self._engine.counts.num_generated_tokens
        opened: list[_Open] = []
        try:
            for request, prompt in zip(requests, prompts, strict=True):
                opened.append(self._start(request, prompt))
            unfinished = {request.request_id for request in requests}
            with ProgressBar("answering", len(opened), enabled=progress) as bar:
                while unfinished:
                    unfinished.difference_update(self._step())
                    generated = self._engine.counts.num_generated_tokens - generated_before
                    rate = generated / max(self._engine.clock() - started, 1e-9)
                    bar.update(len(opened) - len(unfinished), f"{rate:,.0f} tokens/s")
        finally:
            # An error or an interrupt must not leave half-written answers running.
            for request in requests:
                self._close(request.request_id)
        return [one.collector.output for one in opened]

    def _stream(self, request: Request, prompt: str | None) -> Iterator[StreamOutput]:
        one = self._start(request, prompt)
        try:
            while one.pieces or not one.collector.finished:
                if one.pieces:
                    yield one.pieces.popleft()
                else:
                    self._step()
        finally:
            self._close(request.request_id)

    def _step(self) -> list[str]:
        """One step for everyone: pieces of other open streams wait for their readers. The requests that ended."""
        ended = []
        events = self._engine.step()
        now = self._engine.clock()
        for event in events:
            one = self._open.get(event.request_id)
            piece = one.collector.add(event, now) if one is not None else None
            if one is not None and piece is not None:
                one.pieces.append(piece)
                if one.collector.finished:
                    ended.append(event.request_id)
        if self._engine.stopped is not None:
            raise StepFailed(self._engine.stopped)
        return ended

    def _stop_sequence(self, request_id: str, index: int) -> None:
        self._engine.cancel(request_id, index, FinishReason.STOP)

    def _close(self, request_id: str) -> None:
        self._open.pop(request_id, None)
        self._engine.cancel(request_id)


class _Open(NamedTuple):
    collector: Collector
    pieces: deque[StreamOutput]
    """What steps added and no reader has taken yet."""


def _as_prompts(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """One prompt or many; a list of numbers is one prompt of token ids."""
    if isinstance(prompts, str):
        return [prompts]
    if len(prompts) and all(isinstance(item, int) for item in prompts):
        return [cast(Sequence[int], prompts)]
    return list(cast(Sequence[Prompt], prompts))


def _as_conversations(messages: Sequence[Message] | Sequence[Sequence[Message]]) -> list[Sequence[Message]]:
    if len(messages) and isinstance(messages[0], Mapping):
        return [cast(Sequence[Message], messages)]
    return list(cast(Sequence[Sequence[Message]], messages))


def _as_many(given: T | Sequence[T], count: int, name: str) -> list[T]:
    """One value for all, or one for each."""
    if not isinstance(given, Sequence):
        return [given] * count
    if len(given) != count:
        raise InvalidParameter(name, f"{len(given)} of them", f"there are {count} prompts; give one, or one for each")
    return list(given)
