"""The offline face of the engine: a model in this process, used from Python."""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from os import PathLike
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from archerfish.config.load import check_settings
from archerfish.console import ProgressBar, enable_logging
from archerfish.engine.intake import Message, Prompt
from archerfish.engine.interrupts import uninterrupted
from archerfish.engine.outputs import Collector, RequestOutput, StreamOutput
from archerfish.errors import InvalidParameter, RequestError, StepFailed
from archerfish.garbage import out_of_the_collectors_sight
from archerfish.machine import wake_gpu
from archerfish.request import FinishReason, Request, RequestClass, SamplingParams

if TYPE_CHECKING:
    from archerfish.engine.build import Assembly


class LLM:
    """A model that answers prompts, many at once.

        llm = LLM()  # The model in the box; or a directory, or a hub name: LLM("Qwen/Qwen3-0.6B").
        for output in llm.generate(["Once upon a time", "The sea"], SamplingParams(temperature=0, max_tokens=32)):
            print(output.outputs[0].text)

    Settings are those of the command line with underscores: LLM(model, max_model_len=4096). Not for use from several
    threads at once.
    """

    def __init__(self, model: str | PathLike[str] | None = None, **settings: Any) -> None:
        config = check_settings({"model": model, **settings})
        enable_logging()
        if config.device != "cpu":
            wake_gpu()
        # It brings torch, which a GPU need not wait for.
        with out_of_the_collectors_sight("archerfish.engine.build"):
            from archerfish.engine.build import build

        self._assembly = build(config)
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
        priority: int | Sequence[int] = 0,
        request_class: RequestClass | str = RequestClass.ONLINE,
        cache_salt: str | Sequence[str] = "",
        progress: bool = True,
    ) -> list[RequestOutput]:
        """Answer every prompt, text or token ids; outputs come in the prompts' order.

        `request_class` is "online" or "batch"; requests of a lower `priority` go first within their class; requests
        share cached prefixes only with those of the same `cache_salt`.

        A prompt that cannot be served raises before any is started. A request that fails on the way has finish_reason
        "error" and does not disturb the others; if the engine itself fails, StepFailed says why.
        """
        listed = _as_prompts(prompts)
        settings = zip(
            _as_many(params if params is not None else self.default_sampling_params(), len(listed), "params"),
            _as_many(priority, len(listed), "priority"),
            _as_many(cache_salt, len(listed), "cache_salt"),
            strict=True,
        )
        requests = []
        for number, (prompt, (one, rank, salt)) in enumerate(zip(listed, settings, strict=True), 1):
            with _naming(number if len(listed) > 1 else None):
                options = {"request_class": request_class, "priority": rank, "cache_salt": salt}
                requests.append(self._request(prompt, one, **options))
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
        priority: int = 0,
        request_class: RequestClass | str = RequestClass.ONLINE,
        cache_salt: str = "",
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
        options: dict[str, Any] = {"request_class": request_class, "priority": priority, "cache_salt": cache_salt}
        requests = [
            self._request(text, one, add_special_tokens=False, **options)
            for text, one in zip(texts, chosen, strict=True)
        ]
        return self._run(requests, list(texts), progress=progress)

    def embed(self, prompts: Prompt | Sequence[Prompt], *, progress: bool = True) -> list[list[float]]:
        """For each prompt the mean of the last layer's states over its tokens."""
        params = SamplingParams(temperature=0.0, max_tokens=1, prompt_embedding=True)
        embeddings = [output.prompt_embedding for output in self.generate(prompts, params, progress=progress)]
        return [embedding for embedding in embeddings if embedding is not None]

    def stream(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        priority: int = 0,
        request_class: RequestClass | str = RequestClass.ONLINE,
        cache_salt: str = "",
    ) -> Iterator[StreamOutput]:
        """Yield what each step adds, as it comes. Leaving the loop early cancels the request."""
        params = params if params is not None else self.default_sampling_params()
        options: dict[str, Any] = {"request_class": request_class, "priority": priority, "cache_salt": cache_salt}
        return self._stream(self._request(prompt, params, **options), prompt if isinstance(prompt, str) else None)

    def stream_chat(self, messages: Sequence[Message], params: SamplingParams | None = None) -> Iterator[StreamOutput]:
        """The same for a conversation."""
        params = params if params is not None else self.default_sampling_params()
        text = self._intake.chat_text(messages)
        return self._stream(self._request(text, params, add_special_tokens=False), text)

    def default_sampling_params(self) -> SamplingParams:
        """What the model's generation_config.json recommends."""
        return SamplingParams.from_dict(self._assembly.recommended)

    @property
    def assembly(self) -> "Assembly":
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
        return self._intake.request(prompt, params, external_id=str(self._num_requests - 1), **more)

    def _start(self, request: Request, prompt: str | None, *, streams: bool = False) -> "_Open":
        with uninterrupted():
            self._engine.add(request)
            collector = Collector(request, prompt, self._intake.tokenizer, self._stop_sequence)
            one = self._open[request.request_id] = _Open(collector, deque() if streams else None)
            return one

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
        one = self._start(request, prompt, streams=True)
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
        with uninterrupted():
            events = self._engine.step()
            now = self._engine.clock()
            for event in events:
                one = self._open.get(event.request_id)
                piece = one.collector.add(event, now) if one is not None else None
                if one is None:
                    continue
                if one.pieces is not None and piece is not None:
                    one.pieces.append(piece)
                if one.collector.finished:
                    ended.append(event.request_id)
        if self._engine.stopped is not None:
            raise StepFailed(self._engine.stopped)
        return ended

    def _stop_sequence(self, request_id: str, index: int) -> None:
        self._engine.cancel(request_id, index, FinishReason.STOP)

    def _close(self, request_id: str) -> None:
        with uninterrupted():
            self._open.pop(request_id, None)
            self._engine.cancel(request_id)
            if not self._open:
                # Nobody may step again for long: what is in flight is then for nobody, and holds its blocks.
                self._engine.settle()


class _Open(NamedTuple):
    collector: Collector
    pieces: deque[StreamOutput] | None
    """What steps added and no reader has taken yet; None where nobody reads. Kept for nothing, they were most of what
    Python's collector of garbage has to look at, again and again."""


def _as_prompts(prompts: object) -> list[Prompt]:
    """One prompt or many; a list or array of numbers is one prompt of token ids."""
    if isinstance(prompts, (str, Mapping)):
        return [_as_prompt(prompts)]
    if hasattr(prompts, "tolist"):
        prompts = prompts.tolist()
    if isinstance(prompts, bytes) or not isinstance(prompts, Iterable):
        raise InvalidParameter("prompts", prompts, "they must be a text, a list of token ids, or a list of those")
    listed = list(prompts)
    if listed and all(isinstance(item, int) for item in listed):
        return [listed]
    return [_as_prompt(item) for item in listed]


def _as_prompt(prompt: object) -> Prompt:
    """A text or token ids, also as vLLM's users write them: {"prompt": ...} or {"prompt_token_ids": ...}."""
    if isinstance(prompt, Mapping):
        if len(prompt) != 1 or not set(prompt) <= {"prompt", "prompt_token_ids"}:
            raise InvalidParameter("prompt", prompt, "a mapping must have prompt or prompt_token_ids, and nothing else")
        return cast(Prompt, next(iter(prompt.values())))
    return cast(Prompt, prompt)


def _as_conversations(messages: object) -> list[Sequence[Message]]:
    if not isinstance(messages, (list, tuple)):
        raise InvalidParameter("messages", messages, "they must be a list of messages, or a list of such lists")
    if messages and isinstance(messages[0], Mapping):
        return [messages]
    return list(messages)


@contextmanager
def _naming(number: int | None) -> Iterator[None]:
    """Say which of several prompts an error is about."""
    try:
        yield
    except RequestError as error:
        if number is not None:
            error.args = (f"prompt {number}: {error}",)
        raise


def _as_many(given: Any, count: int, name: str) -> list[Any]:
    """One value for all, or one for each."""
    if isinstance(given, str) or not isinstance(given, Sequence):
        return [given] * count
    if len(given) != count:
        raise InvalidParameter(name, f"{len(given)} of them", f"there are {count} prompts; give one, or one for each")
    return list(given)
