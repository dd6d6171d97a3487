"""Calls the store from the event loop, and waits while the disk is full."""

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, TypeVar

from archerfish.console import logger
from archerfish.errors import StorageFull

Wait = Callable[[float], Awaitable[Any]]
"""Waits for so many seconds, as asyncio.sleep does."""

TROUBLE = (StorageFull, OSError, sqlite3.OperationalError)
"""Errors that may pass: a full disk, an unavailable file system, a database that another process locks for long."""

_Result = TypeVar("_Result")


class RetryingStorage:
    """Retries each call until it succeeds, or until `give_up`."""

    def __init__(self, wait: Wait, retry_seconds: float) -> None:
        self._wait = wait
        self._retry_seconds = retry_seconds
        self._given_up = asyncio.Event()
        self.trouble: str | None = None
        """Reason why nothing can be stored at the moment."""

    async def do(self, function: Callable[..., _Result], *arguments: Any) -> _Result:
        """Run a call in a thread. Errors that may pass are retried, others are raised."""
        while True:
            try:
                result = await asyncio.to_thread(function, *arguments)
            except TROUBLE as error:
                self._note(str(error))
                if self._given_up.is_set():
                    raise
                await self._pause()
                continue
            self._note(None)
            return result

    def give_up(self) -> None:
        """Raise errors from now on instead of retrying, also in calls that already wait."""
        self._given_up.set()

    def _note(self, trouble: str | None) -> None:
        if trouble == self.trouble:
            return
        if trouble is None:
            logger.info("batches resume: the storage is available again")
        elif self.trouble is None:
            logger.warning("batches pause: %s", trouble)
        self.trouble = trouble

    async def _pause(self) -> None:
        pauses = {asyncio.ensure_future(self._wait(self._retry_seconds)), asyncio.ensure_future(self._given_up.wait())}
        try:
            await asyncio.wait(pauses, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pause in pauses:
                pause.cancel()
                with suppress(asyncio.CancelledError):
                    await pause
