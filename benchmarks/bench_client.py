"""What the load generator itself can do: requests a second against a server that does nothing, and how exact its times
are against a server that knows when it sent them."""

import argparse
import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import uvloop
from workbench import show

from archerfish.bench.serve.arrivals import constant
from archerfish.bench.serve.client import COMPLETIONS, BenchClient, RequestOptions
from archerfish.bench.serve.connections import ServerAddress
from archerfish.bench.serve.datasets import Sample
from archerfish.bench.serve.load import PlannedLoad, send_load
from archerfish.bench.serve.monitor import ClientMonitor
from archerfish.bench.serve.records import ClientHealth, RequestRecord

SAMPLE = Sample(prompt="Hi", num_prompt_tokens=1, num_output_tokens=8, must_write_all=True, num_shared_tokens=0)
BAR_RATE, BAR_EXACT = 2000, 0.002
TTFT, GAP, NUM_TOKENS = 0.05, 0.01, 20
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def event(**fields: object) -> bytes:
    data = b"data: " + json.dumps(fields).encode() + b"\n\n"
    return b"%x\r\n%b\r\n" % (len(data), data)


TOKEN = event(id="cmpl-0", object="text_completion", choices=[{"index": 0, "text": " word", "finish_reason": None}])
END = b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"


def last(num_tokens: int, **more: object) -> bytes:
    usage = {"prompt_tokens": 1, "completion_tokens": num_tokens}
    return event(choices=[{"index": 0, "text": "", "finish_reason": "length"}], usage=usage, **more) + END


class NullServer(asyncio.Protocol):
    """Answers at once with as many tokens as are usual in a short answer."""

    answer = HEAD + TOKEN * 8 + last(8)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: asyncio.Transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        self.transport.write(self.answer)


class TimedServer(NullServer):
    """Sends tokens at known times, and tells when it really did."""

    def data_received(self, data: bytes) -> None:
        asyncio.get_running_loop().create_task(self._answer(time.monotonic()))

    async def _answer(self, arrived: float) -> None:
        self.transport.write(HEAD)
        sent = []
        for place in range(NUM_TOKENS):
            await asyncio.sleep(max(0.0, arrived + TTFT + GAP * place - time.monotonic()))
            sent.append(time.monotonic())
            self.transport.write(TOKEN)
        tpot = (sent[-1] - sent[0]) / (NUM_TOKENS - 1)
        told = {"queue_ms": 0, "ttft_ms": (sent[0] - arrived) * 1000, "tpot_ms": tpot * 1000}
        self.transport.write(last(NUM_TOKENS, metrics=told))


async def serve(kind: str) -> None:
    protocol = {"null": NullServer, "timed": TimedServer}[kind]
    server = await asyncio.get_running_loop().create_server(protocol, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


@contextmanager
def running(kind: str) -> Iterator[int]:
    process = subprocess.Popen([sys.executable, __file__, "--serve", kind], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield int(process.stdout.readline())
    finally:
        process.kill()
        process.wait()


async def load(port: int, planned: PlannedLoad) -> tuple[list[RequestRecord], ClientHealth]:
    origin = ServerAddress("127.0.0.1", port, False, "")
    client = BenchClient(origin, {}, RequestOptions(model="m", endpoint=COMPLETIONS))
    async with ClientMonitor() as monitor:
        records = await send_load(client, planned, lambda _: None)
    client.close()
    assert all(record.succeeded for record in records)
    return records, monitor.health()


def plan(count: int, rate: float | None, concurrency: int | None) -> PlannedLoad:
    times = [0.0] * count if rate is None else constant(count, rate).tolist()
    return PlannedLoad(samples=[SAMPLE] * count, times=times, is_closed=rate is None, max_concurrency=concurrency)


def rates(repeats: int) -> None:
    rows = []
    with running("null") as port:
        for concurrency in (16, 64, 256):
            best, health = 0.0, None
            for _ in range(repeats):
                records, one = uvloop.run(load(port, plan(8000, None, concurrency)))
                rate = len(records) / max(record.ended for record in records)
                if rate > best:
                    best, health = rate, one
            assert health is not None
            reached = "yes" if best >= BAR_RATE else "no"
            rows.append([str(concurrency), f"{best:,.0f}", f"{best * 8:,.0f}", f"{health.cpu_share:.0%}", reached])
    columns = ["open at once", "requests/s", "tokens/s", "client CPU", f"at least {BAR_RATE:,}"]
    show("Against a server that does nothing, 8 tokens an answer", columns, rows)


def exactness() -> None:
    rows = []
    with running("timed") as port:
        for rate in (10, 100, 200):
            records, health = uvloop.run(load(port, plan(rate * 10, rate, None)))
            timings = [(record.timing, record.server) for record in records]
            ttft = np.asarray([timing.ttft - server.ttft for timing, server in timings])  # type: ignore[union-attr,operator]
            tpot = np.asarray([timing.tpot - server.tpot for timing, server in timings])  # type: ignore[union-attr,operator]
            late = np.asarray([record.sent - record.planned for record in records])
            error = float(np.percentile(np.abs(ttft), 99))
            figures = (np.median(ttft), error, np.percentile(np.abs(tpot), 99), np.percentile(late, 99), health.p99_lag)
            verdict = "yes" if error <= BAR_EXACT else "no"
            rows.append([str(rate), *(f"{figure * 1000:.3f}" for figure in figures), verdict])
    columns = ["requests/s", "TTFT +p50", "TTFT p99", "TPOT p99", "sent late p99", "loop lag p99", "under 2 ms"]
    show("Client's times less the server's own, ms", columns, rows)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--serve", choices=["null", "timed"], help=argparse.SUPPRESS)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    if options.serve:
        uvloop.run(serve(options.serve))
    else:
        rates(options.repeats)
        exactness()
