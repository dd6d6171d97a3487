"""The engine for programs with an event loop, in the shape of vLLM's AsyncLLM: requests in, outputs as they grow.

The model runs in a process of its own, which is started again when it dies. Knows no HTTP.
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from archerfish.config.engine_args import EngineArgs
from archerfish.console import enable_logging
from archerfish.engine.async_engine import DEFAULT_BUILDER, AsyncEngine, EngineStatus
from archerfish.engine.input_processor import InputProcessor
from archerfish.engine.outputs import CompletionOutput, OutputStream, RequestOutput, RequestStream, StreamOutput
from archerfish.engine.pooling import (
    EmbeddingSizes,
    PoolingOutput,
    PoolingParams,
    PoolingRequestOutput,
    as_pooling,
    pooled,
)
from archerfish.engine.prompts import PromptType, as_prompt, one_of
from archerfish.engine.unsupported_features import refuse_unsupported, why_missing
from archerfish.engine.wire import EngineFacts
from archerfish.errors import (
    ArcherfishError,
    EngineStopped,
    InvalidParameter,
    RequestError,
    TokenizerError,
    UserError,
)
from archerfish.request import (
    FinishReason,
    Request,
    RequestClass,
    RequestOutputKind,
    SamplingParams,
    TokenEvent,
)
from archerfish.tokenizer import Tokenizer
from archerfish.tokenizer.public import PublicTokenizer
from archerfish.weights.locate import locate


class AsyncLLM:
    """A model that answers prompts while a program does other things.

        engine = AsyncLLM.from_engine_args(AsyncEngineArgs(model="perch"))
        async for output in engine.generate("Once upon a time", SamplingParams(max_tokens=32), request_id="1"):
            print(output.outputs[0].text)
        engine.shutdown()

    It belongs to the event loop in which it is first used. Loading begins when it is made in one, else with the first
    call; what is wrong with the model is raised by the first call that needs it. Leaving the loop over outputs, or
    cancelling the task that runs it, cancels the request.
    """

    def __init__(self, engine_args: EngineArgs, *, builder: str = DEFAULT_BUILDER) -> None:
        if not isinstance(engine_args, EngineArgs):
            raise InvalidParameter("engine_args", engine_args, "they must be AsyncEngineArgs")
        enable_logging()
        self._config = engine_args.config()
        self._engine = AsyncEngine(self._config, builder=builder)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._starting: asyncio.Task[InputProcessor] | None = None
        self._tokenizer: Tokenizer | None = None
        self._public_tokenizer: PublicTokenizer | None = None
        self._open: defaultdict[str, set[str]] = defaultdict(set)
        """By the caller's name for a request, the engine's names: a caller may use one several times."""
        self._num_requests = 0
        with suppress(RuntimeError):  # There is no event loop yet.
            self._begin(asyncio.get_running_loop())

    @classmethod
    def from_engine_args(cls, engine_args: EngineArgs) -> "AsyncLLM":
        """An engine with settings that were gathered before."""
        return cls(engine_args)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise AttributeError(why_missing("AsyncLLM", name))

    # -- answers --------------------------------------------------------------------------------------------------

    async def generate(
        self,
        prompt: PromptType | None = None,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        *,
        prompt_token_ids: Sequence[int] | None = None,
        params: SamplingParams | None = None,
        priority: int = 0,
        request_class: RequestClass | str = RequestClass.ONLINE,
        cache_salt: str = "",
        **unsupported: Any,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Outputs of one request as it grows; the last one is finished.

        What each holds is said by the parameters' output_kind: by default all that there is so far. With best_of the
        only output is the last. An error of the request is raised as a RequestError, one of the engine as an
        EngineError.
        """
        refuse_unsupported("generate", unsupported)
        processor = await self._ready()
        given = as_prompt(one_of(prompt, prompt_token_ids, ("prompt", "prompt_token_ids")))
        chosen = one_of(sampling_params, params, ("sampling_params", "params"))
        # Tokenizing a long prompt and trying a form take time that the event loop has not.
        request = await asyncio.to_thread(
            processor.request,
            given.content,
            SamplingParams.from_dict(self._facts.recommended) if chosen is None else chosen,
            external_id=self._named(request_id),
            request_class=request_class,
            priority=priority,
            cache_salt=cache_salt if given.cache_salt is None else given.cache_salt,
        )
        stream = self._engine.submit(request, given.text, self._tokenizer)
        self._open[request.external_id].add(request.request_id)
        try:
            async for output in self._outputs(stream):
                yield output
        finally:
            self._engine.cancel(request.request_id)
            self._forget(request)

    async def encode(
        self,
        prompt: PromptType,
        pooling_params: PoolingParams | None = None,
        request_id: str | None = None,
        *,
        pooling_task: str | None = None,
        truncate_prompt_tokens: int | None = None,
        priority: int = 0,
        **unsupported: Any,
    ) -> AsyncGenerator[PoolingRequestOutput[PoolingOutput], None]:
        """What the model makes of a prompt, by task: "embed" (one vector) or "token_embed" (a state for each token).

        There is one output. `truncate_prompt_tokens` keeps only so many tokens at the end of the prompt.
        """
        refuse_unsupported("encode", unsupported)
        await self._ready()
        sizes = EmbeddingSizes(self._facts.hidden_size, self._facts.embedding_sizes)
        chosen = as_pooling(pooling_params, pooling_task, truncate_prompt_tokens, sizes)
        async for output in self.generate(prompt, chosen.sampling_params(), request_id, priority=priority):
            yield pooled(output, chosen)

    async def abort(self, request_id: str | Iterable[str]) -> None:
        """End requests; their last outputs have finish_reason "abort". Those that have ended are left alone."""
        for name in (request_id,) if isinstance(request_id, str) else request_id:
            for own in tuple(self._open.get(name, ())):
                self._engine.cancel(own)

    # -- the engine -----------------------------------------------------------------------------------------------

    def get_tokenizer(self) -> PublicTokenizer:
        """The model's tokenizer, with the methods that users of transformers know. It may also be awaited."""
        config = self._config
        if config.skip_tokenizer_init:
            raise TokenizerError("no tokenizer was loaded: prompts and answers are token ids")
        if self._tokenizer is None:
            revision = config.revision if config.tokenizer is None else None
            directory = locate(config.tokenizer or config.model, revision, weights=False)
            self._tokenizer = Tokenizer.load(directory, config.chat_template)
        if self._public_tokenizer is None:
            name = config.tokenizer or config.model or self._config_name
            self._public_tokenizer = PublicTokenizer(self._tokenizer, name)
        return self._public_tokenizer

    async def check_health(self) -> None:
        """Raise why there is no engine any more, or return once it is ready."""
        await self._ready()

    @property
    def is_running(self) -> bool:
        """Whether requests can be given to it, now or when it has loaded."""
        return self._engine.status is not EngineStatus.ENDED

    @property
    def is_stopped(self) -> bool:
        return not self.is_running

    @property
    def errored(self) -> bool:
        """Whether it ended by itself."""
        return self._engine.ending is not None and self.is_stopped

    @property
    def dead_error(self) -> ArcherfishError:
        """Why it ended."""
        ending = self._engine.ending
        if ending is None:
            return EngineStopped("the engine was shut down")
        return UserError(ending.reason) if ending.can_be_fixed else EngineStopped(ending.reason)

    def shutdown(self, timeout: float | None = None) -> None:
        """End the engine's process now; what is open fails. Also where no event loop runs any more."""
        if timeout is not None:
            raise InvalidParameter("timeout", timeout, "the process is ended at once; leave it out")
        if self._starting is not None and not self._starting.get_loop().is_closed():
            self._starting.cancel()
        self._engine.kill()

    async def __aenter__(self) -> "AsyncLLM":
        await self._ready()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._engine.stop()

    def __del__(self) -> None:
        if "_engine" in vars(self):  # Settings that cannot work leave nothing to end.
            self.shutdown()

    # -- running --------------------------------------------------------------------------------------------------

    def _begin(self, loop: asyncio.AbstractEventLoop) -> "asyncio.Task[InputProcessor]":
        self._loop = loop
        self._starting = loop.create_task(self._start(), name="engine start")
        # Each call that needs the engine raises it; a task whose error is never read would be reported once more.
        self._starting.add_done_callback(lambda task: task.cancelled() or task.exception())
        return self._starting

    async def _start(self) -> InputProcessor:
        await self._engine.start()
        await self._loaded()
        facts = self._facts
        directory = facts.tokenizer_directory
        if self._tokenizer is None and directory is not None:
            self._tokenizer = await asyncio.to_thread(Tokenizer.load, Path(directory), self._config.chat_template)
        return InputProcessor(
            self._tokenizer,
            facts.vocab_size,
            facts.max_model_len,
            time.monotonic,
            facts.max_positions,
            facts.speculation_methods,
        )

    async def _ready(self) -> InputProcessor:
        """What requests are made with, once the engine takes them."""
        loop = asyncio.get_running_loop()
        starting = self._starting or self._begin(loop)
        if loop is not self._loop:
            raise EngineStopped("this AsyncLLM belongs to another event loop; make one in each loop that needs it")
        if self.is_stopped:
            raise self.dead_error
        processor = await asyncio.shield(starting)
        await self._loaded()  # It may have died meanwhile, and be starting again.
        return processor

    async def _loaded(self) -> None:
        try:
            await self._engine.wait_ready()
        except EngineStopped:
            raise self.dead_error from None

    async def _outputs(self, stream: RequestStream) -> AsyncGenerator[RequestOutput, None]:
        kind, finished = stream.request.params.output_kind, False
        while not finished:
            pieces = await stream.next() or stream.add_all(_aborted(stream), time.monotonic())
            finished = stream.finished
            if stream.has_failed:
                reason = stream.error or "the answer could not be finished"
                raise EngineStopped(reason) if stream.engine_failed else RequestError(reason)
            if finished and kind is not RequestOutputKind.DELTA:
                yield stream.result
            elif kind is RequestOutputKind.CUMULATIVE and pieces:
                yield _copied(stream.result)
            elif kind is RequestOutputKind.DELTA and (pieces or finished):
                yield _added(stream.result, pieces) if pieces else stream.result

    def _named(self, request_id: str | None) -> str:
        """The caller's name for a request, or a number."""
        if request_id is None:
            self._num_requests += 1
            return str(self._num_requests - 1)
        if not isinstance(request_id, str) or not request_id:
            raise InvalidParameter("request_id", request_id, "it must be a non-empty string")
        return request_id

    def _forget(self, request: Request) -> None:
        names = self._open[request.external_id]
        names.discard(request.request_id)
        if not names:
            del self._open[request.external_id]

    @property
    def _facts(self) -> EngineFacts:
        assert self._engine.facts is not None, "the engine is ready"
        return self._engine.facts

    @property
    def _config_name(self) -> str:
        return locate(None).name


AsyncLLMEngine = AsyncLLM
"""What vLLM called it before."""


def _aborted(output: OutputStream) -> list[TokenEvent]:
    """Return events that end the unfinished answers of a cancelled request."""
    unfinished = [answer.index for answer in output.result.outputs if answer.finish_reason is None]
    request_id = output.request.request_id
    return [TokenEvent(request_id, index, [], finish_reason=FinishReason.ABORT) for index in unfinished]


def _copied(output: RequestOutput) -> RequestOutput:
    """As it is now: what is added later is not in it."""
    answers = [
        replace(
            answer,
            token_ids=list(answer.token_ids),
            logprobs=None if answer.logprobs is None else list(answer.logprobs),
        )
        for answer in output.outputs
    ]
    return replace(output, outputs=answers)


def _added(output: RequestOutput, pieces: Sequence[StreamOutput]) -> RequestOutput:
    """What was added, for each answer that grew or ended."""
    answers: dict[int, CompletionOutput] = {}
    for piece in pieces:
        whole = output.outputs[piece.index]
        answer = answers.setdefault(
            piece.index, CompletionOutput(piece.index, logprobs=None if whole.logprobs is None else [])
        )
        answer.text += piece.text
        answer.token_ids += piece.token_ids
        if answer.logprobs is not None:
            answer.logprobs += piece.logprobs or []
        answer.cumulative_logprob = whole.cumulative_logprob
        answer.finish_reason, answer.stop_reason = piece.finish_reason, piece.stop_reason
    return replace(output, outputs=[answers[index] for index in sorted(answers)])
