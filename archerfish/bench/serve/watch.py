"""Reads our server's metrics while a load runs. Understands no other server's."""

import asyncio
import re
from itertools import count, takewhile
from typing import Any

from archerfish.bench.serve.client import BenchClient
from archerfish.bench.serve.connections import ConnectionBroke
from archerfish.bench.serve.records import ServerSample, ServerSettings
from archerfish.metrics.prometheus import INFO_LABELS, PREFIX

_OK = 200
_INTERVAL = 0.5

Readings = dict[str, float]
"""Values by metric name, followed by the value of its phase or position label if it has one."""
_LABELS = ("phase", "position")
_LABEL = re.compile(r'(\w+)="([^"]*)"')
_SIZES = {"weight_bytes": "weight_bytes", "kv_cache_bytes_per_token": "kv_bytes_per_token"}
_ACCEPTED_PER_POSITION = "spec_decode_num_accepted_tokens_per_pos_total"


def read_metrics(text: str) -> Readings | None:
    """Return the values of a scrape of our server's /metrics; None if it is another's.

    Only what is needed is parsed: a full parser would delay the event loop that takes the times.
    """
    readings: Readings = {}
    for line in text.splitlines():
        if not line.startswith(PREFIX):
            continue
        name, _, rest = line[len(PREFIX) :].partition("{")
        labels, _, value = rest.rpartition("}")
        if labels.count("=") == 1:
            readings[name] = float(value)
        else:
            for label in _LABELS:
                _, is_there, after = labels.partition(f'{label}="')
                if is_there:
                    value_of_label = after.partition('"')[0]
                    readings[f"{name}:{value_of_label}"] = float(value)
    return readings or None


def read_settings(text: str) -> ServerSettings | None:
    """Return the settings in a scrape of our server's /metrics; None if it is another's, or has no engine yet."""
    settings: dict[str, Any] = {}
    for line in text.splitlines():
        name, _, rest = line.removeprefix(PREFIX).partition("{")
        if name == "engine_info":
            labels = dict(_LABEL.findall(rest))
            settings |= {label: labels[label] for label in INFO_LABELS if label in labels}
        elif name in _SIZES:
            settings[_SIZES[name]] = float(rest.rpartition("}")[2])
    return ServerSettings(**settings) if len(settings) == len(INFO_LABELS) + len(_SIZES) else None


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


def _accepted_at(position: int) -> str:
    return f"{_ACCEPTED_PER_POSITION}:{position}"


class ServerWatch:
    """Takes samples at intervals, and always one at the start and one at the end."""

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
        """Return the samples, in the time of the run: the first was taken a little before it began."""
        return [sample(readings, self._client.since_start(moment)) for moment, readings in self._looks]


async def scrape(client: BenchClient) -> Readings | None:
    """Read the metrics once; None if the server does not answer or is not ours."""
    text = await _metrics_text(client)
    return None if text is None else read_metrics(text)


async def scrape_settings(client: BenchClient) -> ServerSettings | None:
    """Read the settings of our server's engine."""
    text = await _metrics_text(client)
    return None if text is None else read_settings(text)


async def _metrics_text(client: BenchClient) -> str | None:
    try:
        status, body = await client.get("/metrics")
    except ConnectionBroke:
        return None
    return body.decode("utf-8", "replace") if status == _OK else None
