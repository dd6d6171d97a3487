"""Runs a load test, from options to record: generates the load, finds or starts the server, sends, watches, judges."""

import asyncio
import contextlib
import gc
import logging
import os
import resource
import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import uvloop

from archerfish import __version__
from archerfish.bench.serve import arrivals, validity
from archerfish.bench.serve.client import BenchClient, RequestOptions
from archerfish.bench.serve.connections import ConnectionBroke, ServerAddress
from archerfish.bench.serve.datasets import DATASETS, DatasetOptions, Sample, Words, make_samples
from archerfish.bench.serve.load import PlannedLoad, send_load
from archerfish.bench.serve.monitor import ClientMonitor
from archerfish.bench.serve.options import LoadOptions
from archerfish.bench.serve.own_server import own_server
from archerfish.bench.serve.records import BenchRun, BenchTarget, RequestRecord, Workload
from archerfish.bench.serve.watch import ServerWatch, scrape, scrape_settings
from archerfish.errors import ConfigError
from archerfish.tokenizer import Tokenizer
from archerfish.weights.locate import locate

_WARM_UP = Sample(
    prompt="Hello there", num_prompt_tokens=None, num_output_tokens=4, must_write_all=False, num_shared_tokens=None
)
# Seconds that our server may take to measure its machine, and between two checks whether it has.
_LONGEST_PEAK, _BETWEEN_SCRAPES = 15.0, 0.1
_LONGEST_LOADING = 600.0
"""Seconds that a server may take to load its model before a load test gives up."""
_NOT_READY = 503

logger = logging.getLogger("archerfish")

OnEnd = Callable[[RequestRecord], None]


def measure_serving(
    options: LoadOptions, dataset: DatasetOptions, url: str | None, on_end: OnEnd = lambda _: None
) -> BenchRun:
    """Measure a server.

    Without a URL, ours is started and stopped afterwards. `on_end` is called after each request.
    """
    prepared = prepare_load(options, dataset, is_own=url is None)
    with open_server(options, url) as address:
        return measure_load(address, options, prepared, is_own=url is None, on_end=on_end)


def prepare_load(options: LoadOptions, dataset: DatasetOptions, *, is_own: bool) -> tuple[PlannedLoad, Workload]:
    """Return all samples. For a server started here, prompts are measured with its tokenizer."""
    words = Words(_tokenizer(options, is_own=is_own))
    samples = make_samples(dataset, words, options.num_prompts, options.seed)
    return plan_load(options, dataset, samples)


def measure_load(
    address: str,
    options: LoadOptions,
    prepared: tuple[PlannedLoad, Workload],
    *,
    is_own: bool,
    on_end: OnEnd = lambda _: None,
) -> BenchRun:
    """Send a load to a running server."""
    load, workload = prepared
    _allow_many_connections()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_measure(address, options, load, workload, is_own=is_own, on_end=on_end))


def plan_load(options: LoadOptions, dataset: DatasetOptions, samples: Sequence[Sample]) -> tuple[PlannedLoad, Workload]:
    """Return the time of each request, and the name of the arrival process."""
    kind, times = _arrivals(options, DATASETS[dataset.dataset_name].is_trace, samples)
    exact = any(sample.must_write_all for sample in samples)
    load = PlannedLoad(
        samples=samples, times=times, is_closed=kind == "closed", max_concurrency=options.max_concurrency
    )
    workload = Workload(
        dataset=dataset.dataset_name,
        arrivals=kind,
        num_requests=len(samples),
        request_rate=options.ramp_up_end_rps if kind == "ramp" else options.rate,
        burstiness=options.burstiness if kind in ("gamma", "ramp") else None,
        max_concurrency=options.max_concurrency,
        seed=options.seed,
        ignore_eos=exact if options.ignore_eos is None else options.ignore_eos,
    )
    return load, workload


def _arrivals(options: LoadOptions, is_trace: bool, samples: Sequence[Sample]) -> tuple[str, list[float]]:
    count, rate, seed, burstiness = len(samples), options.rate, options.seed, options.burstiness
    if options.arrivals == "trace" and not is_trace:
        raise ConfigError("--arrivals trace needs --dataset-name azure or mooncake")
    replays = rate is None and is_trace and options.ramp_up_strategy is None and options.arrivals in (None, "trace")
    if options.time_scale != 1 and not replays:
        raise ConfigError("--time-scale stretches recorded times: it needs a trace without --request-rate")
    if burstiness != 1 and (options.arrivals == "constant" or (rate is None and options.ramp_up_strategy is None)):
        raise ConfigError("--burstiness is for gamma arrivals: give a --request-rate, or leave it out")
    if options.ramp_up_strategy is not None:
        assert options.ramp_up_start_rps is not None and options.ramp_up_end_rps is not None
        ends = (options.ramp_up_start_rps, options.ramp_up_end_rps)
        return "ramp", arrivals.ramp(count, ends, burstiness, seed, growth=options.ramp_up_strategy).tolist()
    if replays:
        recorded = [sample.time for sample in samples if sample.time is not None]
        return "trace", arrivals.replay(recorded, options.time_scale).tolist()
    if rate is None:
        return "closed", arrivals.at_once(count).tolist()
    if options.arrivals == "constant":
        return "constant", arrivals.constant(count, rate).tolist()
    return "gamma", arrivals.gamma(count, rate, burstiness, seed).tolist()


async def _measure(
    address: str, options: LoadOptions, load: PlannedLoad, workload: Workload, *, is_own: bool, on_end: OnEnd
) -> BenchRun:
    origin, headers = ServerAddress.parse(address), {**_key_header(), **options.headers}
    target = await _probe(origin, headers, options, is_own=is_own)
    request = RequestOptions(
        model=target.model,
        endpoint=target.endpoint,
        ignore_eos=workload.ignore_eos,
        wants_metrics=target.is_archerfish,
        temperature=options.temperature,
        extra_body=options.extra_body,
        timeout=options.timeout,
    )
    client = BenchClient(origin, headers, request)
    try:
        await _warm_up(client, options.num_warmups)
        if is_own:
            await _wait_for_peak(client)
        settings = await scrape_settings(client) if target.is_archerfish else None
        # The objects of the load stay alive: collecting garbage among them would only delay readings of the clock.
        gc.collect()
        gc.freeze()
        started_at = datetime.now(UTC).isoformat(timespec="seconds")
        async with contextlib.AsyncExitStack() as watching:
            watch = await watching.enter_async_context(ServerWatch(client)) if target.is_archerfish else None
            async with ClientMonitor() as monitor:
                records = await send_load(client, load, on_end)
    finally:
        gc.unfreeze()
        client.close()
    run = BenchRun(
        version=__version__,
        label=options.label or f"{target.model} {workload.dataset} {options.request_rate}/s",
        started_at=started_at,
        target=target,
        workload=workload,
        duration=max(record.ended for record in records),
        client=monitor.health(),
        findings=(),
        requests=tuple(records),
        samples=() if watch is None else tuple(watch.samples),
        server=settings,
    )
    return replace(run, findings=validity.find(run))


async def _probe(origin: ServerAddress, headers: dict[str, str], options: LoadOptions, *, is_own: bool) -> BenchTarget:
    """Return what the server is, and its name for the model."""
    client = BenchClient(origin, headers, RequestOptions(model="", endpoint=options.path))
    try:
        is_archerfish = await scrape(client) is not None
        await _wait_until_loaded(client, origin, "/health/ready" if is_archerfish else "/v1/models")
        # A server started here may have been given a directory: its own name for the model is the right one.
        model = options.model if options.model is not None and not is_own else await _first_model(client, origin)
    finally:
        client.close()
    return BenchTarget(url=origin.url, endpoint=options.path, model=model, is_archerfish=is_archerfish, is_own=is_own)


async def _wait_until_loaded(client: BenchClient, origin: ServerAddress, path: str) -> None:
    """Wait while the server answers that it is not ready (503), as it does until its model is loaded."""
    deadline = time.monotonic() + _LONGEST_LOADING
    is_waiting = False
    while True:
        try:
            status, _ = await client.get(path)
        except ConnectionBroke as error:
            raise ConfigError(f"{error}; is --url right, and is the server running?") from error
        if status != _NOT_READY:
            return
        if not is_waiting:
            logger.info("waiting for %s to load its model", origin.url)
            is_waiting = True
        if time.monotonic() > deadline:
            raise ConfigError(
                f"{origin.url} is still not ready after {_LONGEST_LOADING:.0f} s ({path} answers {status}); "
                "start again when its model is loaded"
            )
        await asyncio.sleep(_BETWEEN_SCRAPES)


async def _first_model(client: BenchClient, origin: ServerAddress) -> str:
    try:
        status, body = await client.get("/v1/models")
    except ConnectionBroke as error:
        raise ConfigError(f"{error}; is --url right, and is the server running?") from error
    try:
        listed: Any = msgspec.json.decode(body)
        return str(listed["data"][0]["id"])
    except (msgspec.MsgspecError, LookupError, TypeError) as error:
        raise ConfigError(f"{origin.url}/v1/models lists no model (HTTP {status}): name one with --model") from error


async def _warm_up(client: BenchClient, count: int) -> None:
    body = client.body(_WARM_UP)
    for _ in range(count):
        record = await client.send(0, _WARM_UP, body, None)
        if record.error is not None:
            raise ConfigError(f"the server failed a small warm-up request: {record.error}")


async def _wait_for_peak(client: BenchClient) -> None:
    """Wait until our server has measured its machine, which it does when idle: a load would delay that."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_LONGEST_PEAK):
            while "peak_flops" not in (await scrape(client) or ()):
                await asyncio.sleep(_BETWEEN_SCRAPES)


@contextlib.contextmanager
def open_server(options: LoadOptions, url: str | None) -> Iterator[str]:
    """Yield the address of the server to measure: the one at the URL, or one that is started and stopped here."""
    if url is not None:
        if options.server_args is not None:
            raise ConfigError("--server-args are for the server that is started without --url: leave out one of them")
        yield url
        return
    try:
        arguments = shlex.split(options.server_args or "")
    except ValueError as error:
        raise ConfigError(f"--server-args: {error}") from error
    named = [] if options.model is None else ["--model", options.model]
    with own_server([*named, *arguments]) as address:
        yield address


def _tokenizer(options: LoadOptions, *, is_own: bool) -> Tokenizer | None:
    if options.tokenizer is None and not is_own:
        return None
    directory: Path = locate(options.tokenizer or options.model, weights=False)
    return Tokenizer.load(directory)


def _key_header() -> dict[str, str]:
    key = os.environ.get("OPENAI_API_KEY")
    return {"Authorization": f"Bearer {key}"} if key else {}


def _allow_many_connections() -> None:
    """Raise the limit on open files: each open request has a connection."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
