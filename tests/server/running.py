"""A real service in a process of its own, on a real port."""

import contextlib
import os
import re
import signal
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx

_COMMAND = "from archerfish.cli.main import main; main()"
_PATIENCE = 60.0
PEAKS = ("--peak-flops", "1e9", "--peak-bandwidth", "1e9")
"""What the machine can do, which a service otherwise measures for a second after its start."""


@dataclass
class RunningService:
    process: "subprocess.Popen[str]"
    lines: list[str] = field(default_factory=list)
    """What it has written on standard error."""
    url: str = ""
    verify: ssl.SSLContext | bool = True
    """How to know it by its certificate, where it has one."""

    def wait_for_line(self, pattern: str) -> "re.Match[str]":
        """The first line that matches, once it is there."""
        end = time.monotonic() + _PATIENCE
        while time.monotonic() < end:
            for line in list(self.lines):
                if found := re.search(pattern, line):
                    return found
            if self.process.poll() is not None and not self._reader.is_alive():
                raise AssertionError(f"the service ended with {self.process.returncode}:\n" + "".join(self.lines))
            self._news.wait(0.05)
            self._news.clear()
        raise AssertionError(f"no line matched {pattern}:\n" + "".join(self.lines))

    def wait_ready(self) -> None:
        end = time.monotonic() + _PATIENCE
        with httpx.Client(base_url=self.url, verify=self.verify) as client:
            while not self._is_ready(client):
                if self.process.poll() is not None:
                    self._reader.join()
                    raise AssertionError(f"the service ended with {self.process.returncode}:\n" + "".join(self.lines))
                assert time.monotonic() < end, "".join(self.lines)
                self._news.wait(0.02)

    def _is_ready(self, client: httpx.Client) -> bool:
        try:
            return client.get("/health/ready").status_code == 200
        except httpx.TransportError:
            return False

    def children(self, module: str) -> list[int]:
        """Process ids of its children that run a module, `archerfish.engine.process` for instance."""
        found = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return [int(pid) for pid in found if module.encode() in command_line(pid)]

    @property
    def engine(self) -> int:
        """The process id of its engine."""
        [engine] = self.children("archerfish.engine.process")
        return engine

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(_PATIENCE)

    def listen(self) -> None:
        self._news = threading.Event()

        def read() -> None:
            assert self.process.stderr is not None
            for line in self.process.stderr:
                self.lines.append(line)
                self._news.set()

        self._reader = threading.Thread(target=read, daemon=True)
        self._reader.start()


@contextlib.contextmanager
def running_service(
    *options: str,
    wait: bool = True,
    environment: dict[str, str] | None = None,
    verify: ssl.SSLContext | bool = True,
    command: str = _COMMAND,
    measures_peaks: bool = False,
) -> Iterator[RunningService]:
    """`archerfish serve` with these options on a free port; killed at the end if it still runs."""
    arguments = ["serve", "--port", "0", "--threads", "1", *(() if measures_peaks else PEAKS), *options]
    process = subprocess.Popen(
        [sys.executable, "-c", command, *arguments],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **(environment or {})},
    )
    service = RunningService(process, verify=verify)
    service.listen()
    try:
        service.url = service.wait_for_line(r'listening at ([^\s"]+)')[1]
        if wait:
            service.wait_ready()
        yield service
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def command_line(pid: int) -> bytes:
    """The arguments of a process, each ended by a zero byte; empty if it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
