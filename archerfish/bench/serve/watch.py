"""Reads what our server tells of itself while a load runs. Understands no other server's metrics."""

import asyncio
from itertools import count, takewhile

from archerfish.bench.serve.client import BenchClient
from archerfish.bench.serve.connections import ConnectionBroke
from archerfish.bench.serve.records import ServerSample
from archerfish.metrics.prometheus import PREFIX

_OK = 200
_INTERVAL = 0.5

Readings = dict[str, float]
"""By name, with the value of its phase or position label behind it where it has one."""
_LABELS = ("phase", "position")
_ACCEPTED_PER_POSITION = "spec_decode_num_accepted_tokens_per_pos_total"


def read_metrics(text: str) -> Readings | None:
    """Values of a scrape of our server's /metrics; None if it is another's.

    Only what is needed is looked at: a full parser would hold up the event loop that takes the times.
    """
    found: Readings = {}
    for line in text.splitlines():
        if not line.startswith(PREFIX):
            continue
        name, _, rest = line[len(PREFIX) :].partition("{")
        labels, _, value = rest.rpartition("}")
        if labels.count("=") == 1:
            found[name] = float(value)
        else:
            for label in _LABELS:
                _, is_there, after = labels.partition(f'{label}="')
                if is_there:
                    value_of_label = after.partition('"')[0]
                    found[f"{name}:{value_of_label}"] = float(value)
    return found or None


def sample(readings: Readings, time: float) -> ServerSample:
    def number(name: str) -> float:
        return readings.get(name, 0.0)

    return ServerSample(
        time=time,
        num_running=int(number("num_requests_running")),
        num_waiting=int(number("num_requests_waiting")),
        batch_occupancy=number("batch_occupancy"),
        kv_cache_usage=number("kv_cache_usage_perc"),
        num_steps=int(number("engine_steps_total")),
        busy_seconds=number("engine_busy_seconds_total"),
        num_computed_tokens=int(number("computed_tokens_total")),
        num_generated_tokens=int(number("generation_tokens_total")),
        num_prefix_tokens_queried=int(number("prefix_cache_queries_total")),
        num_prefix_tokens_hit=int(number("prefix_cache_hits_total")),
        num_preemptions=int(number("num_preemptions_total")),
        prefill_flops=number("estimated_flops_total:prefill"),
        decode_flops=number("estimated_flops_total:decode"),
        prefill_bytes=number("estimated_read_bytes_total:prefill"),
        decode_bytes=number("estimated_read_bytes_total:decode"),
        peak_flops=readings.get("peak_flops"),
        peak_bandwidth=readings.get("peak_bandwidth_bytes"),
        energy_joules=readings.get("energy_joules_total"),
        num_drafts=int(number("spec_decode_num_drafts_total")),
        num_draft_tokens=int(number("spec_decode_num_draft_tokens_total")),
        num_accepted_tokens=int(number("spec_decode_num_accepted_tokens_total")),
        accepted_per_position=tuple(
            int(readings[key]) for key in takewhile(readings.__contains__, map(_accepted_at, count()))
        ),
        drafting_seconds=number("spec_decode_seconds_total"),
        saved_seconds=number("spec_decode_seconds_saved_total"),
        lost_seconds=number("spec_decode_seconds_lost_total"),
    )


def _accepted_at(place: int) -> str:
    return f"{_ACCEPTED_PER_POSITION}:{place}"


class ServerWatch:
    """Takes a sample now and then, one at the start and one at the end in any case."""

    def __init__(self, client: BenchClient) -> None:
        self._client = client
        self._task: asyncio.Task[None] | None = None
        self._looks: list[tuple[float, Readings]] = []

    async def __aenter__(self) -> "ServerWatch":
        await self._look()
        self._task = asyncio.create_task(self._watch())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self._look()

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(_INTERVAL)
            await self._look()

    async def _look(self) -> None:
        readings = await scrape(self._client)
        if readings is not None:
            self._looks.append((self._client.clock(), readings))

    @property
    def samples(self) -> list[ServerSample]:
        """In the time of the run: the first was taken a little before it began."""
        return [sample(readings, self._client.since_start(moment)) for moment, readings in self._looks]


async def scrape(client: BenchClient) -> Readings | None:
    """None where the server is gone or not ours."""
    try:
        status, body = await client.get("/metrics")
    except ConnectionBroke:
        return None
    return read_metrics(body.decode("utf-8", "replace")) if status == _OK else None
