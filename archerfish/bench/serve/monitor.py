"""Watches the measuring process: whether its event loop is on time, and its core full. Knows nothing of the load."""

import asyncio
import time

import numpy as np

from archerfish.bench.serve.records import ClientHealth

_INTERVAL = 0.01


class ClientMonitor:
    """Watches the process while the load runs."""

    def __init__(self) -> None:
        self._lags: list[float] = []
        self._task: asyncio.Task[None] | None = None
        self._cpu = 0.0
        self._wall = 0.0

    async def __aenter__(self) -> "ClientMonitor":
        self._cpu, self._wall = time.process_time(), time.monotonic()
        self._task = asyncio.create_task(self._watch())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()
        self._cpu, self._wall = time.process_time() - self._cpu, time.monotonic() - self._wall

    def health(self) -> ClientHealth:
        """Return the health of the client over the whole run."""
        lags = np.asarray(self._lags or [0.0])
        return ClientHealth(
            cpu_share=self._cpu / self._wall if self._wall > 0 else 0.0,
            median_lag=float(np.median(lags)),
            p99_lag=float(np.percentile(lags, 99)),
            largest_lag=float(lags.max()),
        )

    async def _watch(self) -> None:
        while True:
            started = time.monotonic()
            await asyncio.sleep(_INTERVAL)
            self._lags.append(max(0.0, time.monotonic() - started - _INTERVAL))
