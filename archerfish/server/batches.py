"""Batches in the service: their lines are read and answered like any request, in the batch class."""

import asyncio

import msgspec

from archerfish.engine.async_engine import DEATHS_WINDOW, MOST_DEATHS
from archerfish.errors import EngineStopped, StepFailed
from archerfish.jobs.lines import NotNow, RunnerSettings
from archerfish.jobs.records import LineReply, new_id
from archerfish.jobs.retrying_storage import Wait
from archerfish.jobs.runner import BatchRunner
from archerfish.jobs.store import JobStore
from archerfish.request import RequestClass
from archerfish.server.errors import ApiError, as_api_error
from archerfish.server.requests import RequestContext
from archerfish.server.service import Service

_IN_FLIGHT = 256
"""Lines that are answered at once."""
_NOT_NOW = (429, 503)
"""Statuses of a request that the service did not take, or that the engine failed with."""
_ENGINE_FAILED = "engine_failed"


def new_runner(store: JobStore, service: Service, wait: Wait = asyncio.sleep) -> BatchRunner:
    """Return a runner that answers lines with the service."""

    async def answer(endpoint: str, body: bytes, _custom_id: str, tenant: str) -> LineReply:
        try:
            await service.wait_ready()
        except EngineStopped as error:
            raise NotNow("the engine has ended") from error  # Another process will answer it.
        context = RequestContext(new_id("req_"), service.keys.owner(tenant), RequestClass.BATCH)
        try:
            # The bytes of the input go in and those of the reply come out: parsing either here would block the loop.
            reply = await service.reply(context, await service.read_line(context, endpoint, body))
        except Exception as error:
            refusal = as_api_error(error)
            if refusal.status_code in _NOT_NOW:
                raise _not_answered(refusal) from error
            return LineReply(refusal.status_code, msgspec.json.encode(refusal.body), context.request_id)
        return LineReply(200, reply, context.request_id)

    settings = RunnerSettings(
        max_in_flight=_IN_FLIGHT, max_failures=MOST_DEATHS - 1, failure_window=DEATHS_WINDOW + 1.0
    )
    return BatchRunner(store, answer, settings=settings, wait=wait, clock=service.clock)


def _not_answered(refusal: ApiError) -> StepFailed | NotNow:
    """Return what is raised for a line without a result. Only an engine that failed while it had it is the line's."""
    reply = refusal.reply
    if reply.code == _ENGINE_FAILED:
        return StepFailed(reply.message)
    retry_after = (refusal.headers or {}).get("Retry-After")
    reason = reply.code or str(reply.body["error"]["type"])
    return NotNow(reason, None if retry_after is None else float(retry_after))
