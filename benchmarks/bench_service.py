"""What the service costs on top of the engine: streams over HTTP beside the offline engine, start, idleness.

The engine's share is also taken out: with a scripted executor, what is left is scheduling, two processes and HTTP.
"""

import argparse
import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import uvloop
from workbench import show

from archerfish import LLM, SamplingParams
from archerfish.config.settings import EngineConfig
from archerfish.engine.build import Assembly, build
from archerfish.engine.engine import Engine
from archerfish.execution.scripted import ScriptedExecutor

PROMPT = "Once upon a time there was a"
BAR_OF_OFFLINE, BAR_SCRIPTED, BAR_READY, BAR_IDLE = 0.9, 10_000, 4.0, 0.01
SERVE = (
    "from archerfish.config.settings import EngineConfig, ServerConfig; from archerfish.server.serve import serve; "
    "serve(EngineConfig({}), ServerConfig(port=0), builder={!r})"
)


def build_scripted(config: EngineConfig, on_progress: Callable[[float], None]) -> Assembly:
    """An engine that knows what it will write: words of the vocabulary, one after the other."""
    assembly = build(config, on_progress)
    executor = ScriptedExecutor(lambda _, length: 300 + length % 5000)
    return replace(assembly, engine=Engine(assembly.engine.scheduler, executor, time.monotonic))


class Service:
    """A service in processes of its own."""

    def __init__(self, settings: str, builder: str) -> None:
        self.started = time.perf_counter()
        command = [sys.executable, "-c", SERVE.format(settings, builder)]
        here = str(Path(__file__).resolve().parent)
        environment = {**os.environ, "PYTHONPATH": here}
        self._process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
        self.port = 0
        assert self._process.stderr is not None
        for line in self._process.stderr:
            if found := re.search(r"listening at http://127.0.0.1:(\d+)", line):
                self.port = int(found[1])
            if "is ready" in line:
                break
        self.seconds_to_ready = time.perf_counter() - self.started
        # A line for each request: in a pipe that nobody empties, the service would soon wait for room.
        threading.Thread(target=self._process.stderr.read, daemon=True).start()

    def cpu_seconds(self) -> float:
        """Of both processes."""
        pid = self._process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return sum(_cpu_seconds(int(pid)) for pid in (pid, *children))

    def stop(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def service(settings: str, builder: str = "archerfish.engine.build:build") -> Iterator[Service]:
    running = Service(settings, builder)
    try:
        yield running
    finally:
        running.stop()


async def stream(port: int, body: dict[str, Any]) -> int:
    """Read one stream to its end with as little work as possible; the tokens it had."""
    data = json.dumps(body).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(data)}"
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
    writer.write(head.encode() + b"\r\n\r\n" + data)
    last = b""
    while chunk := await reader.read(1 << 16):
        last = (last + chunk)[-4096:]
        if b"data: [DONE]" in last:
            break
    writer.close()
    return int(re.findall(rb'"completion_tokens":(\d+)', last)[-1])


async def streams(port: int, count: int, num_tokens: int) -> float:
    """Tokens a second of so many streams at once."""
    body = {"prompt": PROMPT, "max_tokens": num_tokens, "ignore_eos": True, "temperature": 0, "stream": True}
    body["stream_options"] = {"include_usage": True}
    started = time.perf_counter()
    counts = await asyncio.gather(*(stream(port, {**body, "prompt": f"{PROMPT} {n}"}) for n in range(count)))
    return sum(counts) / (time.perf_counter() - started)


def offline(llm: LLM, count: int, num_tokens: int) -> float:
    params = SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True)
    started = time.perf_counter()
    outputs = llm.generate([f"{PROMPT} {n}" for n in range(count)], params, progress=False)
    return sum(len(one.outputs[0].token_ids) for one in outputs) / (time.perf_counter() - started)


def compare(repeats: int, num_tokens: int) -> None:
    """By turns, the best of each: machines are shared."""
    rows = []
    with LLM(max_num_seqs=32) as llm, service("max_num_seqs=32") as running:
        for count in (8, 32):
            alone = served = 0.0
            for _ in range(repeats):
                alone = max(alone, offline(llm, count, num_tokens))
                served = max(served, uvloop.run(streams(running.port, count, num_tokens)))
            share = served / alone
            rows.append(
                [str(count), f"{alone:,.0f}", f"{served:,.0f}", f"{share:.0%}", _verdict(share >= BAR_OF_OFFLINE)]
            )
    show(
        "Streams of perch over HTTP", ["streams", "offline tokens/s", "served tokens/s", "share", "at least 90 %"], rows
    )


def scripted(repeats: int) -> None:
    rows = []
    with service("max_num_seqs=256", "bench_service:build_scripted") as running:
        for count in (32, 64, 128):
            rate = max(uvloop.run(streams(running.port, count, 500)) for _ in range(repeats))
            rows.append([str(count), f"{rate:,.0f}", _verdict(rate >= BAR_SCRIPTED)])
    show("Without a model, client included", ["streams", "tokens/s", "at least 10,000"], rows)


def start_and_idle(repeats: int) -> None:
    ready = []
    for _ in range(repeats):
        with service("") as running:
            ready.append(running.seconds_to_ready)
            uvloop.run(streams(running.port, 1, 16))
    with service("") as running:
        time.sleep(5)  # Whatever is done once when idle is over.
        before = running.cpu_seconds()
        time.sleep(10)
        idle = (running.cpu_seconds() - before) / 10
    rows = [
        ["start to ready, seconds", f"{min(ready):.2f}", _verdict(min(ready) < BAR_READY)],
        ["CPU when idle", f"{idle:.2%}", _verdict(idle < BAR_IDLE)],
    ]
    show("Start and idleness", ["", "", "under 4 s, under 1 %"], rows)


def _verdict(reached: bool) -> str:
    return "yes" if reached else "no"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=128)
    options = parser.parse_args()
    compare(options.repeats, options.tokens)
    scripted(options.repeats)
    start_and_idle(options.repeats)
