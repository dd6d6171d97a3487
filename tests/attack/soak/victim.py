"""The service that is soaked: started, hurt, started again on the same data, and in the end stopped."""

import asyncio
import contextlib
import os
import signal
import time
from collections import deque
from pathlib import Path

import httpx

from archerfish.engine.async_engine import DEATHS_WINDOW, MOST_DEATHS
from tests.attack.books import check_books_empty
from tests.attack.conftest import KEYS, by
from tests.attack.memory import resident
from tests.attack.soak.ledger import Ledger
from tests.server.running import RunningService, command_line, running_service

STALL_TIMEOUT = 4.0
_WORKER = "archerfish.server.preprocessing.worker"
_OPTIONS = (
    # Malformed bodies may ask for the longest answer there is.
    *("--max-num-seqs", "16", "--max-model-len", "256", "--stall-timeout", str(STALL_TIMEOUT)),
    *("--shutdown-timeout", "60"),
    # A cache that is soon touched as a whole, so that memory that grows later is not its own.
    *("--kv-cache-memory-bytes", "32M"),
)


class Victim:
    """One service after another on one directory."""

    def __init__(self, directory: Path, ledger: Ledger) -> None:
        self._directory = directory
        self.ledger = ledger
        self._running = contextlib.ExitStack()
        self._service: RunningService | None = None
        self._engine_deaths: deque[float] = deque()
        self._descendants: set[int] = set()
        self._is_over = False
        self.epoch = 0
        """Counts every time that anything was killed: what was under way at that moment may have no answer."""
        self.is_whole = asyncio.Event()
        """Set while nothing is being killed or started again."""

    @property
    def url(self) -> str:
        assert self._service is not None
        return self._service.url

    async def start(self) -> None:
        self._service = await asyncio.to_thread(self._start)
        await asyncio.to_thread(self._service.wait_ready)
        self.is_whole.set()

    def _start(self) -> RunningService:
        keys = self._directory / "keys.toml"
        keys.write_text(KEYS)
        keys.chmod(0o600)
        options = ("--key-file", str(keys), "--data-dir", str(self._directory / "jobs"), *_OPTIONS)
        service = self._running.enter_context(running_service(*options, wait=False))
        if self._is_over:  # It was given up while a thread was starting this one.
            self._running.close()
        return service

    def memory(self) -> dict[str, float]:
        """Megabytes of each process now."""
        service = self._whole_service()
        workers = sum(map(resident, service.children(_WORKER)))
        sizes = {"service": resident(service.process.pid), "engine": resident(service.engine), "workers": workers}
        return {name: size / 1e6 for name, size in sizes.items()}

    # -- what is done to it ---------------------------------------------------------------------------------------

    @property
    def may_lose_engine(self) -> bool:
        """Whether the service would start another engine: not after too many deaths in short time."""
        while self._engine_deaths and time.monotonic() - self._engine_deaths[0] > DEATHS_WINDOW + STALL_TIMEOUT:
            self._engine_deaths.popleft()
        return len(self._engine_deaths) < MOST_DEATHS - 1

    async def hurt_engine(self, number: signal.Signals) -> None:
        """Kill the engine, or stop it so that the service has to find out; returns when there is another."""
        service = self._begin(f"engine {number.name}")
        num_restarts = (await self._health())["engine_restarts"]
        self._engine_deaths.append(time.monotonic())
        os.kill(service.engine, number)
        async with asyncio.timeout(120):
            while (health := await self._health())["engine_restarts"] == num_restarts or not health["ready"]:
                await asyncio.sleep(0.1)
        self.is_whole.set()

    async def kill_service(self) -> None:
        """Kill the process that serves HTTP, and start it again."""
        service = self._begin("service SIGKILL")
        service.process.kill()
        await asyncio.to_thread(self._running.close)
        self._engine_deaths.clear()
        await self.start()

    async def stop(self) -> None:
        """Check that nothing is open, stop it in the usual way, and look whether anything is left."""
        service = self._whole_service()
        try:
            await asyncio.to_thread(check_books_empty, service, by("alice"))
        except AssertionError as error:
            self.ledger.leftovers.append(f"the books are not empty: {error}")
        self._note_descendants(service)
        code = await asyncio.to_thread(service.stop)
        if code != 0:
            self.ledger.leftovers.append(f"the service ended with {code}")
        self.ledger.leftovers += [line for line in service.lines if "did not finish in time" in line]
        await asyncio.to_thread(self._running.close)
        await self._check_processes()

    def kill(self) -> None:
        """Whatever happens, nothing goes on."""
        self._is_over = True
        self._running.close()

    def _begin(self, what: str) -> RunningService:
        service = self._whole_service()
        self._note_descendants(service)
        self.is_whole.clear()
        self.epoch += 1
        self.ledger.killed[what] += 1
        return service

    def _whole_service(self) -> RunningService:
        assert self._service is not None and self.is_whole.is_set()
        return self._service

    async def _health(self) -> dict[str, int]:
        async with httpx.AsyncClient(base_url=self.url, timeout=60) as client:
            health: dict[str, int] = (await client.get("/health")).json()
            return health

    def _note_descendants(self, service: RunningService) -> None:
        self._descendants |= {service.engine, *service.children(_WORKER)}

    async def _check_processes(self) -> None:
        """None of the processes that any of the services started is still there."""
        left = self._descendants
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(20):
                while left := {pid for pid in left if b"archerfish" in command_line(pid)}:
                    await asyncio.sleep(0.1)
        self.ledger.leftovers += [f"process {pid} is still running" for pid in left]
