"""Starts our server for a benchmark, in a process of its own on a free port, and stops it afterwards."""

import contextlib
import re
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Iterator, Sequence

from archerfish.errors import ConfigError

# The server is on this machine: proxies of the environment are not for it.
_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
_LISTENING = re.compile(r"listening at (\S+)")
_LAST_LINES = 20
_BETWEEN_LOOKS = 0.05
_LONGEST_GOODBYE = 40.0


@contextlib.contextmanager
def own_server(arguments: Sequence[str]) -> Iterator[str]:
    """Yield the address of `archerfish serve` with these arguments, ready for requests."""
    command = [sys.executable, "-m", "archerfish", "serve", *arguments, "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    output = _Output(process)
    try:
        url = output.wait_for_address()
        while not _is_ready(url):
            if process.poll() is not None:
                raise output.why_it_ended()
            output.ended.wait(_BETWEEN_LOOKS)
        yield url
    finally:
        _stop(process)
        output.close()


class _Output:
    """Reads the server's output as it comes, so that the server never blocks."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process
        self._lines: deque[str] = deque(maxlen=_LAST_LINES)
        self._address: str | None = None
        self._news = threading.Event()
        self.ended = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def wait_for_address(self) -> str:
        self._news.wait()
        if self._address is None:
            raise self.why_it_ended()
        return self._address

    def why_it_ended(self) -> ConfigError:
        self._reader.join()
        output = " ".join(" ".join(self._lines).split()).removeprefix("error: ")
        return ConfigError(f"the server did not start: {output or f'it ended with {self._process.wait()}'}")

    def close(self) -> None:
        self._reader.join()
        assert self._process.stderr is not None
        self._process.stderr.close()

    def _read(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._lines.append(line)
            if self._address is None and (match := _LISTENING.search(line)):
                self._address = match[1]
                self._news.set()
        self.ended.set()
        self._news.set()


def _is_ready(url: str) -> bool:
    try:
        with _opener.open(f"{url}/health/ready", timeout=5) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def _stop(process: "subprocess.Popen[str]") -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(_LONGEST_GOODBYE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
