"""Sends a load as planned: each request at its time, and no more at once than allowed. Knows no metric."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from archerfish.bench.serve.client import BenchClient
from archerfish.bench.serve.datasets.sample import Sample
from archerfish.bench.serve.records import RequestRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedLoad:
    samples: Sequence[Sample]
    times: Sequence[float]
    """Times of the requests, ascending."""
    is_closed: bool
    """Whether a request is sent when another ends, and not at a time of its own."""
    max_concurrency: int | None = None


async def send_load(
    client: BenchClient, load: PlannedLoad, on_end: Callable[[RequestRecord], None]
) -> list[RequestRecord]:
    """Send a load, and return its records in the order of the plan. The client's clock starts here."""
    bodies = [client.body(sample) for sample in load.samples]
    slots = None if load.max_concurrency is None else asyncio.Semaphore(load.max_concurrency)
    waits_for_slot = load.is_closed and slots is not None

    async def send(index: int, planned: float | None) -> RequestRecord:
        try:
            record = await client.send(index, load.samples[index], bodies[index], planned)
        finally:
            if slots is not None:
                slots.release()
        on_end(record)
        return record

    client.start()
    async with asyncio.TaskGroup() as group:
        tasks = []
        for index, planned in enumerate(load.times):
            wait = planned - client.now()
            if wait > 0:
                await asyncio.sleep(wait)
            if slots is not None:
                await slots.acquire()
            tasks.append(group.create_task(send(index, None if waits_for_slot else float(planned))))
    return [task.result() for task in tasks]
