"""The service behind its endpoints: one engine, who may use it, how much it takes on, what is counted."""

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from starlette.requests import HTTPConnection
from starlette.requests import Request as HttpRequest

from archerfish import __version__
from archerfish.api.endpoints import HistoryNeeded, Turns
from archerfish.api.errors import ErrorReply
from archerfish.api.inputs import EngineInputs
from archerfish.api.json_limits import JsonLimits
from archerfish.api.model import AnswerFormats, ServedModel
from archerfish.config.settings import EngineConfig, ServerConfig
from archerfish.console import logger
from archerfish.engine.async_engine import DEFAULT_BUILDER, AsyncEngine, EngineStatus
from archerfish.engine.input_processor import InputProcessor
from archerfish.engine.outputs import OutputStream
from archerfish.engine.wire import Ending, EngineFacts
from archerfish.errors import EngineStopped, UserError
from archerfish.jobs.quota import Quota
from archerfish.jobs.runner import BatchRunner
from archerfish.jobs.store import JobStore
from archerfish.machine.peak import Peak
from archerfish.metrics.history import SECONDS_BETWEEN_SAMPLES, History
from archerfish.metrics.service import ServiceMetrics, TenantUsage
from archerfish.metrics.state import EngineState
from archerfish.request import SLO, Request, RequestClass, SamplingParams, TokenEvent
from archerfish.server.answers import Answer, close
from archerfish.server.errors import ApiError
from archerfish.server.keys import Key, Keys
from archerfish.server.limits import Admission, RateLimits
from archerfish.server.preprocessing.jobs import Job, ModelSpec
from archerfish.server.preprocessing.model import load_model
from archerfish.server.preprocessing.pool import Preprocessing
from archerfish.server.requests import BodyLimits, check_content_type
from archerfish.server.tracing import RequestTrace, Tracing
from archerfish.server.trial_queue import TrialQueue
from archerfish.server.uploads import Uploads
from archerfish.tokenizer.chat import checked_template

Clock = Callable[[], float]

_LEAST_BODY_ITEMS = 2**18
"""JSON items that a body may have by default; more where the context is longer."""
_MOST_HELD_BODIES = 8
"""Bodies of the largest size that are held at a time, until their prompts are tokenized."""
_SHARE_OF_A_KEY = 0.5
"""Of the queue, where there are several keys: none of them can fill it for the others."""
_OPENED_AT_ONCE = 32
"""Prompts of one body that are submitted before others are served."""
_BATCH_SHARE = 0.5
"""Of the queue, as far as lines of batches may fill it: the rest is for those who wait for their answers."""


class Service:
    """Made once; endpoints find it with `service_of`."""

    def __init__(
        self,
        engine: EngineConfig,
        server: ServerConfig,
        *,
        builder: str = DEFAULT_BUILDER,
        clock: Clock = time.monotonic,
        warms_up: bool = False,
    ) -> None:
        """`warms_up`: be ready only when the preprocessing workers are, instead of starting them when needed."""
        self._warms_up = warms_up
        self.config = server
        self.clock = clock
        self.started_at = int(time.time())
        self.metrics = ServiceMetrics(clock, version=__version__)
        self.history = History()
        flops, bandwidth = server.peak_flops, server.peak_bandwidth
        if flops is not None and bandwidth is not None:
            self.metrics.peak = Peak(flops, bandwidth)
        on_peak = None if self.metrics.peak is not None else self._peak_measured
        self.engine = AsyncEngine(
            engine,
            builder=builder,
            on_step=self._stepped,
            on_peak=on_peak,
            on_death=self.metrics.engine_restarted,
            clock=clock,
            log_json=server.log_json,
            stall_timeout=server.stall_timeout,
        )
        endpoint = server.otlp_traces_endpoint
        self.tracing = None if endpoint is None else Tracing(endpoint, clock)
        self.keys = Keys.load(server.api_key, None if server.key_file is None else Path(server.key_file))
        self._rates = RateLimits(clock)
        self._admission = Admission(server.max_queued_requests, server.max_queued_tokens)
        self._default_slo = _default_slo(server)
        self._model: ServedModel | None = None
        self._ready = asyncio.Event()
        """The model is there, and stays: only the engine may have to be started again."""
        self.jobs = None if server.data_dir is None else _open_store(server.data_dir, server)
        self.uploads = Uploads(server.max_file_bytes, server.body_timeout, server.min_upload_rate)
        self.runner: BatchRunner | None = None
        """Of batches, once there is an application to answer them."""
        AnswerFormats(server.tool_call_format, server.reasoning_parser).check()  # Before anything is loaded.
        self._chat_template = None if engine.chat_template is None else checked_template(engine.chat_template)
        self.bodies = BodyLimits(server.max_body_bytes, server.body_timeout, _MOST_HELD_BODIES * server.max_body_bytes)
        self._preprocessing: Preprocessing | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._recorder: asyncio.Task[None] | None = None
        self._trials = TrialQueue()
        self._draining = False
        self._idle = asyncio.Event()
        self._idle.set()

    # -- its life -------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Begin to load the model; requests are refused until it is there."""
        await self.engine.start()
        self._watcher = asyncio.create_task(self._watch(), name="readiness")
        self._recorder = asyncio.create_task(self._record(), name="history")
        if self.runner is not None:
            self.runner.start()

    async def _watch(self) -> None:
        """Once the engine is ready, be ready too; where that fails, end the service with the reason."""
        try:
            await self._become_ready()
        except EngineStopped:
            pass  # The service ends with the engine's own reason.
        except Exception as error:
            logger.exception("the service cannot be made ready")
            reason = f"the service cannot be made ready: {error}"
            self.engine.fail(Ending(reason, can_be_fixed=isinstance(error, UserError)))

    async def _become_ready(self) -> None:
        facts = await self.engine.wait_ready()
        max_items = self.config.max_body_items or max(_LEAST_BODY_ITEMS, 2 * facts.max_model_len)
        spec = ModelSpec(
            facts,
            self.model_names,
            self.config.tool_call_format,
            JsonLimits(max_items),
            reasoning_parser=self.config.reasoning_parser,
            chat_template=self._chat_template,
        )
        model = await asyncio.to_thread(load_model, spec, self.clock)
        self._limits = spec.limits
        self._preprocessing = Preprocessing(spec, model, self.config.preprocessing_workers)
        if self._warms_up:
            await self._preprocessing.warm_up()
        self._model = model
        self._ready.set()
        self.metrics.model = self.model_name
        self.metrics.engine_info = facts.info
        logger.info("%s is ready", self.model_name)

    async def wait_ready(self) -> None:
        """Until requests are taken; raises EngineStopped if they never will be."""
        await self.engine.wait_ready()
        if self._ready.is_set():
            return
        ready = asyncio.ensure_future(self._ready.wait())
        ended = asyncio.ensure_future(self.engine.wait_ended())
        try:
            await asyncio.wait((ready, ended), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for waiting in (ready, ended):
                waiting.cancel()
        await self.engine.wait_ready()

    async def _record(self) -> None:
        while True:
            self.history.add(self.snapshot())
            await asyncio.sleep(SECONDS_BETWEEN_SAMPLES)

    async def drain(self) -> None:
        """Take no more work, and wait until what is open has finished, or for as long as was allowed."""
        self._draining = True
        if self.runner is not None:
            await self.runner.stop()
        try:
            await asyncio.wait_for(self._idle.wait(), self.config.shutdown_timeout)
        except TimeoutError:
            logger.warning("%d answers did not finish in time", self._admission.num_sequences)

    async def stop(self) -> None:
        if self.runner is not None:
            await self.runner.stop()
        for task in (self._watcher, self._recorder):
            if task is not None:
                task.cancel()
        await self.engine.stop()
        if self._preprocessing is not None:
            await self._preprocessing.close()
        self._trials.close()
        if self.jobs is not None:
            self.jobs.close()
        if self.tracing is not None:
            await asyncio.to_thread(self.tracing.close)

    def wake_batches(self) -> None:
        """There is news in the store."""
        if self.runner is not None:
            self.runner.wake()

    # -- what it is -----------------------------------------------------------------------------------------------

    @property
    def facts(self) -> EngineFacts:
        if self.engine.facts is None:
            raise self._not_ready()
        return self.engine.facts

    @property
    def model(self) -> ServedModel:
        if self._model is None:
            raise self._not_ready()
        return self._model

    @property
    def processor(self) -> InputProcessor:
        return self.model.processor

    @property
    def model_names(self) -> tuple[str, ...]:
        """What clients may call the model."""
        return self.config.served_model_name or (self.facts.model,)

    @property
    def model_name(self) -> str:
        """What replies and metrics call it."""
        return self.model_names[0]

    def health(self) -> dict[str, Any]:
        status = "draining" if self._draining else self.engine.status.value
        is_ready = self.engine.status is EngineStatus.READY
        silent = self.clock() - self.engine.last_progress if is_ready else 0.0
        stalled = silent > self.config.stall_timeout
        return {
            "live": not stalled and self.engine.status is not EngineStatus.ENDED,
            "ready": status == EngineStatus.READY.value and self._model is not None and not stalled,
            "status": "stalled" if stalled else status,
            "loaded_percent": round(100 * self.engine.loaded_share, 1),
            "seconds_without_progress": round(silent, 3),
            "engine_restarts": self.engine.num_restarts,
        }

    def snapshot(self) -> dict[str, Any]:
        """How things are, for the live page."""
        self.metrics.status = str(self.health()["status"])
        return self.metrics.snapshot()

    def usage(self, caller: Key) -> TenantUsage:
        """What the ended requests of a key came to since the start."""
        return self.metrics.usage.get(caller.name, TenantUsage())

    # -- bodies ---------------------------------------------------------------------------------------------------

    async def read(self, http: HttpRequest, endpoint: str, find_history: Callable[[str], Turns] | None = None) -> Any:
        """What the body asks of an endpoint: an EndpointCall, or a whole reply as JSON. Raises what is wrong with it.

        `find_history` finds the turns before a response that the body continues.
        """
        _ = self.model  # Without one, nothing can be read.
        check_content_type(http)
        async with self.bodies.body(http) as body:
            tenant, in_batch = http.state.caller.name, _request_class(http) is RequestClass.BATCH
            outcome = await self._understand(Job(endpoint, body, in_batch=in_batch), tenant)
            if isinstance(outcome, HistoryNeeded):
                assert find_history is not None, "only where histories are kept can they be asked for"
                history = find_history(outcome.response_id)
                outcome = await self._understand(Job(endpoint, body, history, in_batch), tenant)
        return outcome

    async def read_reply(self, http: HttpRequest, endpoint: str) -> bytes:
        """The reply of an endpoint that needs no engine, as JSON. It counts as a request of its key."""
        self._check_rate(http.state.caller, 0)
        reply: bytes = await self.read(http, endpoint)
        return reply

    async def _understand(self, job: Job, tenant: str) -> Any:
        assert self._preprocessing is not None, "there is a model"
        if job.is_quick:
            outcome = job.run(self.model, self._limits)
        else:
            outcome = await self._preprocessing.run(job, tenant)
        if isinstance(outcome, ErrorReply):
            raise ApiError.of(outcome)
        return outcome

    # -- requests -------------------------------------------------------------------------------------------------

    async def open(self, http: HTTPConnection, inputs: EngineInputs) -> Answer:
        """Start the answer to a single prompt, or raise the error that the client gets instead."""
        [answer] = await self.open_all(http, inputs)
        return answer

    async def open_all(self, http: HTTPConnection, inputs: EngineInputs) -> list[Answer]:
        """Start the answers to all prompts, or to none of them."""
        self._check_open()
        caller, trace = http.state.caller, http.state.trace
        _check_priority(caller, inputs.body.priority)
        if caller.name:
            http.state.log["key"] = caller.name
        if inputs.body.user is not None:
            http.state.log["user"] = inputs.body.user
        request_class = _request_class(http)
        make_requests = partial(
            inputs.requests,
            self.processor,
            http.state.request_id,
            request_class=request_class,
            slo=self._default_slo,
            tenant=caller.name,
            cache_salt=caller.cache_salt(inputs.body.cache_salt),
        )
        load = _load(inputs.num_sequences, inputs.num_prompt_tokens, inputs.params)
        # Admitted by its size alone, before any work is done for it: refusals cost nothing.
        self._admit(caller, load)
        answers: list[Answer] = []
        try:
            requests = await self._requests(caller, inputs, make_requests, request_class)
            self._check_open()  # Much may have happened meanwhile.
            for number, (request, text) in enumerate(zip(requests, inputs.texts, strict=True)):
                if number % _OPENED_AT_ONCE == _OPENED_AT_ONCE - 1:
                    await asyncio.sleep(0)  # Others are served meanwhile.
                finished = partial(self._finished, caller, http.state.log, trace)
                stream = self.engine.submit(request, text, self.processor.tokenizer)
                answers.append(Answer(self.engine, stream, finished))
                self.metrics.request_started(request)
            if trace is not None:
                trace.opened(requests, self.model_name)
        except BaseException:
            # Whatever went wrong, nothing of it stays: an answer gives back what was taken for it when it is closed.
            opened = [_load_of(answer.output.request) for answer in answers]
            close(answers)
            self._give_back(caller, load.without(opened))
            raise
        headers = self._rates.headers(caller)
        for answer in answers:
            answer.headers = headers
        return answers

    async def _requests(
        self, caller: Key, inputs: EngineInputs, make_requests: Callable[[], list[Request]], request_class: RequestClass
    ) -> list[Request]:
        """Make the requests of a body; a response format that is new is tried first, in a process of its own."""
        form = inputs.params.structured
        if form is None or self.processor.has_tried(form):
            return make_requests()
        # The lines of a batch are bounded by the batch runner itself.
        is_bounded = request_class is RequestClass.ONLINE
        return await self._trials.run(caller.name, make_requests, is_bounded=is_bounded)

    def _give_back(self, caller: Key, load: "_Load") -> None:
        """Undo what was taken for answers that were never opened."""
        if load.num_sequences:
            self._rates.settle(caller, load.max_tokens, 0)
            self._leave(caller, load)

    def _leave(self, caller: Key, load: "_Load") -> None:
        self._admission.leave(caller.name, load.num_sequences, load.num_prompt_tokens)
        self.metrics.num_open_answers = self._admission.num_sequences
        if self._admission.num_sequences == 0:
            self._idle.set()

    def _peak_measured(self, peak: Peak) -> None:
        given = self.config
        self.metrics.peak = Peak(given.peak_flops or peak.flops, given.peak_bandwidth or peak.bandwidth)

    def _stepped(self, events: list[TokenEvent], state: EngineState) -> None:
        self.metrics.tokens(events)
        self.metrics.state(state)

    def _check_open(self) -> None:
        if self._draining:
            raise ApiError(503, "the service is stopping", code="draining", headers={"Retry-After": "10"})
        if self.engine.status is not EngineStatus.READY or self._model is None:
            raise self._not_ready()

    def _admit(self, caller: Key, load: "_Load") -> None:
        """Take on all of it, or nothing."""
        num_sequences, num_tokens = load.num_sequences, load.num_prompt_tokens
        tenant_share = _SHARE_OF_A_KEY if self.keys.are_several else 1.0
        total_share = _BATCH_SHARE if caller.is_batch else 1.0
        most = self._admission.most_of(min(tenant_share, total_share))
        if num_sequences > most:
            message = f"the request asks for {num_sequences:,} answers, and {most:,} can be open at once: send fewer"
            raise ApiError(400, message, code="too_many_answers")
        shares = {"tenant_share": tenant_share, "total_share": total_share}
        if not self._admission.enter(caller.name, num_sequences, num_tokens, **shares):
            seconds = max(1, round(self.metrics.retry_after(self._admission.num_tokens)))
            message = f"the queue is full ({self._admission.num_sequences} answers); try again in {seconds} seconds"
            raise ApiError(429, message, code="queue_full", headers={"Retry-After": str(seconds)})
        self._idle.clear()
        self.metrics.num_open_answers = self._admission.num_sequences
        try:
            self._check_rate(caller, load.max_tokens)
        except BaseException:
            self._leave(caller, load)
            raise

    def _check_rate(self, caller: Key, max_tokens: int) -> None:
        wait = self._rates.admit(caller, max_tokens)
        if wait is not None:
            seconds = math.ceil(wait)
            message = f"the key {caller.name!r} has used what it may in a minute; try again in {seconds} seconds"
            headers = {"Retry-After": str(seconds), **self._rates.headers(caller)}
            raise ApiError(429, message, code="rate_limit_exceeded", headers=headers)

    def _finished(self, caller: Key, log: dict[str, Any], trace: RequestTrace | None, output: OutputStream) -> None:
        usage, timing = output.usage, output.result.metrics
        # Of several prompts the sums; never a word of what was said.
        log["prompt_tokens"] = log.get("prompt_tokens", 0) + usage.num_prompt_tokens
        log["cached_tokens"] = log.get("cached_tokens", 0) + usage.num_cached_tokens
        log["tokens"] = log.get("tokens", 0) + usage.num_generated_tokens
        log["finish"] = output.finish_reason.value
        if timing.ttft is not None:
            log["ttft_ms"] = round(timing.ttft * 1000, 1)
        actual = usage.num_prompt_tokens + usage.num_generated_tokens
        load = _load_of(output.request)
        self._rates.settle(caller, load.max_tokens, actual)
        self._leave(caller, load)
        self.metrics.request_finished(output.request, timing, usage, output.finish_reason)
        if trace is not None:
            trace.answered(output.request, timing, usage, output.finish_reason)

    def _not_ready(self) -> ApiError:
        percent = f", {100 * self.engine.loaded_share:.0f} % loaded" if self.engine.loaded_share < 1 else ""
        message = f"the model is not ready: {self.engine.status.value}{percent}"
        return ApiError(503, message, code="not_ready", headers={"Retry-After": "2"})


def service_of(http: HTTPConnection) -> Service:
    service: Service = http.app.state.service
    return service


def _request_class(http: HTTPConnection) -> RequestClass:
    request_class: RequestClass = getattr(http.state, "request_class", RequestClass.ONLINE)
    return request_class


def _check_priority(caller: Key, priority: int) -> None:
    least = caller.min_priority
    if least is not None and priority < least:
        message = (
            f"priority = {priority} is not for the key {caller.name!r}: lower goes first, and its requests may go down "
            f"to {least}; leave priority out, or have min_priority = {priority} set for this key in the key file"
        )
        raise ApiError(403, message, param="priority", code="priority_not_allowed")


class _Load(NamedTuple):
    """What requests take of the queue and of a key's rate."""

    num_sequences: int
    num_prompt_tokens: int
    max_tokens: int
    """Tokens read and written at most, where a limit is known; the actual number is settled at the end."""

    def without(self, parts: Sequence["_Load"]) -> "_Load":
        """Return what is left without some of the requests."""
        return _Load(*(whole - sum(part) for whole, *part in zip(self, *parts, strict=True)))


def _load_of(request: Request) -> _Load:
    return _load(request.params.n, len(request.prompt_token_ids), request.params)


def _load(num_sequences: int, num_prompt_tokens: int, params: SamplingParams) -> _Load:
    return _Load(num_sequences, num_prompt_tokens, num_prompt_tokens + num_sequences * (params.max_tokens or 0))


def _open_store(directory: str, config: ServerConfig) -> JobStore:
    quota = Quota(
        max_open_batches=config.max_open_batches, max_files=config.max_files, max_bytes=config.max_stored_bytes
    )
    return JobStore(directory, max_file_bytes=config.max_file_bytes, quota=quota)


def _default_slo(config: ServerConfig) -> SLO | None:
    if config.slo_ttft_ms is None and config.slo_tpot_ms is None:
        return None
    return SLO(ttft_ms=config.slo_ttft_ms, tpot_ms=config.slo_tpot_ms)
