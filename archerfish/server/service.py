"""The service behind its endpoints: one engine, its callers and limits, its metrics."""

import asyncio
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from starlette.requests import HTTPConnection
from starlette.requests import Request as HttpRequest

from archerfish import __version__
from archerfish.api.endpoint_call import EndpointCall
from archerfish.api.endpoints import HistoryNeeded
from archerfish.api.errors import ErrorReply
from archerfish.api.limits import JsonLimits
from archerfish.api.model import AnswerFormats, ServedModel
from archerfish.api.responses import ResponsesCall
from archerfish.config.settings import EngineConfig, ServerConfig
from archerfish.console import logger
from archerfish.engine.async_engine import DEFAULT_BUILDER, AsyncEngine, EngineStatus
from archerfish.engine.input_processor import InputProcessor
from archerfish.engine.outputs import RequestStream
from archerfish.engine.wire import Ending, EngineFacts
from archerfish.errors import EngineStopped, UserError
from archerfish.jobs.quota import Quota
from archerfish.jobs.runner import BatchRunner
from archerfish.jobs.store import JobStore
from archerfish.machine.peak import Peak
from archerfish.metrics.history import SECONDS_BETWEEN_SAMPLES, History
from archerfish.metrics.service import ServiceMetrics, TenantUsage
from archerfish.metrics.state import EngineState
from archerfish.request import SLO, RequestClass, Structured, TokenEvent
from archerfish.server.errors import ApiError
from archerfish.server.keys import Key, Keys
from archerfish.server.limits import Admission, RateLimits, RequestLimits, RequestLoad
from archerfish.server.preprocessing.pool import Preprocessing
from archerfish.server.preprocessing.protocol import ModelSpec, PreprocessingJob, load_model
from archerfish.server.replies import RunningCall
from archerfish.server.requests import BodyLimits, RequestContext, check_content_type, context_of
from archerfish.server.response_store import ResponseStore, StoredResponse
from archerfish.server.tracing import Tracing
from archerfish.server.trial_queue import TrialQueue
from archerfish.server.uploads import Uploads
from archerfish.tokenizer.chat import checked_template

Clock = Callable[[], float]

_LEAST_BODY_ITEMS = 2**18
"""JSON items that a body may have by default; more where the context is longer."""
_MOST_HELD_BODIES = 8
"""Bodies of the largest size that are held at a time, until their prompts are tokenized."""
_SUBMITTED_AT_ONCE = 32
"""Prompts of one body that are submitted before others are served."""


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
        self._admission = Admission(server.max_queued_requests, server.max_queued_tokens)
        self.limits = RequestLimits(
            self._admission, RateLimits(clock), self.metrics, has_several_keys=self.keys.are_several
        )
        self.responses = ResponseStore()
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
        self._json_limits = spec.limits
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
            await asyncio.wait_for(self.limits.idle.wait(), self.config.shutdown_timeout)
        except TimeoutError:
            logger.warning("%d answers did not finish in time", self.limits.num_sequences)

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
        """Names that clients may use for the model."""
        return self.config.served_model_name or (self.facts.model,)

    @property
    def model_name(self) -> str:
        """The model's name in replies and metrics."""
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
        """Return the state of the service, for the live page."""
        self.metrics.status = str(self.health()["status"])
        return self.metrics.snapshot()

    def usage(self, caller: Key) -> TenantUsage:
        """Return the usage of a key's ended requests since the start."""
        return self.metrics.usage.get(caller.name, TenantUsage())

    # -- bodies ---------------------------------------------------------------------------------------------------

    async def read(self, http: HttpRequest, endpoint: str) -> Any:
        """Return what the body of a request comes to: an EndpointCall, or a whole reply as JSON.

        Raises the error that the client gets instead.
        """
        _ = self.model  # Without one, nothing can be read.
        check_content_type(http)
        async with self.bodies.received(http) as body:
            return await self._understand(context_of(http), endpoint, body)

    async def read_line(self, context: RequestContext, endpoint: str, body: bytes) -> EndpointCall:
        """Return the call that the body of a batch's line comes to. Raises the error that is its result instead."""
        _ = self.model
        with self.bodies.held(context.tenant, body):
            call: EndpointCall = await self._understand(context, endpoint, body)
            return call

    async def read_reply(self, http: HttpRequest, endpoint: str) -> bytes:
        """Return the reply of an endpoint that needs no engine, as JSON. It counts as a request of its key."""
        self.limits.check_rate(context_of(http).caller, 0)
        reply: bytes = await self.read(http, endpoint)
        return reply

    async def _understand(self, context: RequestContext, endpoint: str, body: bytes) -> Any:
        job = PreprocessingJob(endpoint, body, in_batch=context.request_class is RequestClass.BATCH)
        outcome = await self._preprocess(job, context.tenant)
        if isinstance(outcome, HistoryNeeded):
            context.history = self.responses.history(context.tenant, outcome.response_id)
            outcome = await self._preprocess(job._replace(history=context.history.turns), context.tenant)
        return outcome

    async def _preprocess(self, job: PreprocessingJob, tenant: str) -> Any:
        assert self._preprocessing is not None, "there is a model"
        if job.is_quick:
            outcome = job.run(self.model, self._json_limits)
        else:
            outcome = await self._preprocessing.run(job, tenant)
        if isinstance(outcome, ErrorReply):
            raise ApiError.of(outcome)
        return outcome

    # -- calls ----------------------------------------------------------------------------------------------------

    async def reply(self, context: RequestContext, call: EndpointCall) -> bytes:
        """Answer a call that is not streamed, and return the reply as JSON."""
        running = await self.open(context, call)
        try:
            reply = await running.reply()
        finally:
            running.close()
        if isinstance(call, ResponsesCall) and call.body.is_stored:
            stored = StoredResponse.of(call, reply.value, context.history)
            self.responses.add(context.tenant, reply.value["id"], stored)
        return reply.body

    async def open(self, context: RequestContext, call: EndpointCall) -> RunningCall:
        """Give all requests of a call to the engine, or none of them."""
        self._check_open()
        caller, inputs = context.caller, call.inputs
        _check_priority(caller, inputs.priority)
        if caller.name:
            context.log["key"] = caller.name
        if inputs.user is not None:
            context.log["user"] = inputs.user
        load = RequestLoad.of_inputs(inputs)
        # Admitted by its size alone, before any work is done for it: refusals cost nothing.
        self.limits.admit(caller, load)
        running = RunningCall(call, partial(self._end, context))
        try:
            await self._check_grammar(context, inputs.params.structured)
            self._check_open()  # Much may have happened meanwhile.
            await self._submit(context, running)
        except BaseException:
            # Closing the call releases what was admitted for the requests that were submitted.
            opened = [RequestLoad.of_request(stream.request) for stream in running.streams]
            running.close()
            self.limits.settle(caller, load.without(opened), 0)
            raise
        context.reply_headers = self.limits.headers(caller)
        return running

    async def _submit(self, context: RequestContext, running: RunningCall) -> None:
        inputs = running.call.inputs
        requests = inputs.requests(
            self.clock(),
            context.request_id,
            request_class=context.request_class,
            tenant=context.tenant,
            slo=self._default_slo,
            cache_salt=context.caller.cache_salt(inputs.cache_salt),
        )
        for number, (request, text) in enumerate(zip(requests, inputs.prompt_texts, strict=True)):
            if number % _SUBMITTED_AT_ONCE == _SUBMITTED_AT_ONCE - 1:
                await asyncio.sleep(0)  # Others are served meanwhile.
            running.streams.append(self.engine.submit(request, text, self.processor.tokenizer))
            self.metrics.request_started(request)
        if context.trace is not None:
            context.trace.opened(requests, self.model_name)

    async def _check_grammar(self, context: RequestContext, structured: Structured | None) -> None:
        """Check the grammar of a call. One that is new is compiled first, in a process of its own."""
        if not self.processor.has_checked(structured):
            check = partial(self.processor.check_grammar, structured)
            # The lines of a batch are bounded by the batch runner itself.
            is_bounded = context.request_class is RequestClass.ONLINE
            await self._trials.run(context.tenant, check, is_bounded=is_bounded)

    def _end(self, context: RequestContext, stream: RequestStream) -> None:
        """Cancel what has not ended of a request, and account for it."""
        request, log = stream.request, context.log
        self.engine.cancel(request.request_id)
        usage, timing, finish_reason = stream.usage, stream.result.metrics, stream.finish_reason
        # Sums over several prompts. The log never contains a word of any text.
        log["prompt_tokens"] = log.get("prompt_tokens", 0) + usage.num_prompt_tokens
        log["cached_tokens"] = log.get("cached_tokens", 0) + usage.num_cached_tokens
        log["tokens"] = log.get("tokens", 0) + usage.num_generated_tokens
        log["finish"] = finish_reason.value
        if timing.ttft is not None:
            log["ttft_ms"] = round(timing.ttft * 1000, 1)
        num_tokens = usage.num_prompt_tokens + usage.num_generated_tokens
        self.limits.settle(context.caller, RequestLoad.of_request(request), num_tokens)
        self.metrics.request_finished(request, timing, usage, finish_reason)
        if context.trace is not None:
            context.trace.answered(request, timing, usage, finish_reason)

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

    def _not_ready(self) -> ApiError:
        percent = f", {100 * self.engine.loaded_share:.0f} % loaded" if self.engine.loaded_share < 1 else ""
        message = f"the model is not ready: {self.engine.status.value}{percent}"
        return ApiError(503, message, code="not_ready", headers={"Retry-After": "2"})


def service_of(http: HTTPConnection) -> Service:
    service: Service = http.app.state.service
    return service


def _check_priority(caller: Key, priority: int) -> None:
    least = caller.min_priority
    if least is not None and priority < least:
        message = (
            f"priority = {priority} is not for the key {caller.name!r}: lower goes first, and its requests may go down "
            f"to {least}; leave priority out, or have min_priority = {priority} set for this key in the key file"
        )
        raise ApiError(403, message, param="priority", code="priority_not_allowed")


def _open_store(directory: str, config: ServerConfig) -> JobStore:
    quota = Quota(
        max_open_batches=config.max_open_batches, max_files=config.max_files, max_bytes=config.max_stored_bytes
    )
    return JobStore(directory, max_file_bytes=config.max_file_bytes, quota=quota)


def _default_slo(config: ServerConfig) -> SLO | None:
    if config.slo_ttft_ms is None and config.slo_tpot_ms is None:
        return None
    return SLO(ttft_ms=config.slo_ttft_ms, tpot_ms=config.slo_tpot_ms)
