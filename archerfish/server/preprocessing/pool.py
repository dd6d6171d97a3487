"""The preprocessing workers of a service: jobs wait for one, and one that dies is replaced."""

import asyncio
import os
import pickle
import signal
import socket
import sys
from contextlib import suppress
from typing import Any

from archerfish.api.errors import MISTAKE, ErrorReply
from archerfish.api.model import ServedModel
from archerfish.console import logger
from archerfish.server.limits import TenantQueue
from archerfish.server.preprocessing.protocol import (
    LAST_OUTCOME,
    LENGTH,
    OUTCOME,
    ModelSpec,
    PreprocessingJob,
    TooMuch,
    decode_outcome,
)

SHORT = 64 * 1024
"""Bytes of a job that any worker takes. Longer ones leave one worker to the others."""

_LOADING_SECONDS = 120.0
_BUSY_FACTOR = 10
"""How much longer than its processor time a job may take on a machine that does other things, too."""


class Preprocessing:
    """Several workers, of which one takes short jobs alone: long jobs never hold up short ones. Tenants take turns."""

    def __init__(self, spec: ModelSpec, model: ServedModel, num_workers: int | None = None) -> None:
        """`model` is what the workers make of `spec` themselves. Workers start with their first job, or `warm_up`."""
        self._model = model
        num_workers = num_workers or max(2, min(8, (os.cpu_count() or 1) // 8))
        self._workers = [_Worker(spec, takes_long=number > 0 or num_workers == 1) for number in range(num_workers)]
        self._waiting_short: TenantQueue[_Turn] = TenantQueue()
        self._waiting_long: TenantQueue[_Turn] = TenantQueue()
        self._restarts: set[asyncio.Task[None]] = set()

    async def warm_up(self) -> None:
        """Start all workers."""
        await asyncio.gather(*(worker.start() for worker in self._workers if not worker.is_busy))

    async def run(self, job: PreprocessingJob, tenant: str = "") -> Any:
        """An Outcome of api.endpoints, or an ErrorReply."""
        worker = await self._acquire(tenant, is_long=job.size > SHORT)
        try:
            outcome = await worker.run(job)
        finally:
            self._give_back(worker)
        return outcome if isinstance(outcome, ErrorReply) else decode_outcome(outcome, self._model)

    async def close(self) -> None:
        for task in self._restarts:
            task.cancel()
        await asyncio.gather(*self._restarts, return_exceptions=True)
        await asyncio.gather(*(worker.stop() for worker in self._workers))

    async def _acquire(self, tenant: str, *, is_long: bool) -> "_Worker":
        for worker in self._workers:
            if not worker.is_busy and (worker.takes_long or not is_long):
                worker.is_busy = True
                return worker
        waiting = self._waiting_long if is_long else self._waiting_short
        turn: _Turn = asyncio.get_running_loop().create_future()
        waiting.push(tenant, turn)
        try:
            return await turn
        except asyncio.CancelledError:
            if not waiting.remove(tenant, turn) and not turn.cancelled():
                # It was given a worker, but cancelled before it could use it.
                self._release(turn.result())
            raise

    def _give_back(self, worker: "_Worker") -> None:
        """Release the worker, if it has ended as soon as there is another process: no job waits for it to load."""
        if worker.is_running:
            self._release(worker)
            return
        restart = asyncio.create_task(self._restart(worker))
        self._restarts.add(restart)
        restart.add_done_callback(self._restarts.discard)

    async def _restart(self, worker: "_Worker") -> None:
        try:
            await worker.start()
        except (OSError, EOFError, TimeoutError) as error:
            logger.error("a preprocessing worker could not be started: %s", error)  # The next job tries again.
        finally:
            self._release(worker)

    def _release(self, worker: "_Worker") -> None:
        """Give the worker to the job whose turn it is, long ones first: not all workers take those."""
        queues = (self._waiting_long, self._waiting_short) if worker.takes_long else (self._waiting_short,)
        for waiting in queues:
            while waiting:
                turn = waiting.pop()
                if not turn.cancelled():
                    turn.set_result(worker)
                    return
        worker.is_busy = False


class _Worker:
    """One process after another, used only by the task that has marked it busy."""

    def __init__(self, spec: ModelSpec, *, takes_long: bool) -> None:
        self.takes_long = takes_long
        self.is_busy = False
        self._spec = spec
        self._process: asyncio.subprocess.Process | None = None
        self._is_ending = False
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter

    @property
    def is_running(self) -> bool:
        """Whether there is a process that takes another job."""
        if self._process is None or self._process.returncode is not None or self._is_ending:
            return False
        return not self._reader.at_eof()

    async def start(self) -> None:
        """Have a process that is ready for a job."""
        if self.is_running:
            return
        await self.stop()
        self._is_ending = False
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-m", "archerfish.server.preprocessing.worker", str(theirs.fileno())),
                pass_fds=[theirs.fileno()],
                stdin=asyncio.subprocess.DEVNULL,
                start_new_session=True,
                env=_environment(),
            )
        self._reader, self._writer = await asyncio.open_connection(sock=ours)
        await self._send(pickle.dumps(self._spec))
        async with asyncio.timeout(_LOADING_SECONDS):
            await self._receive()

    async def run(self, job: PreprocessingJob) -> bytes | ErrorReply:
        """An outcome as the worker encodes it, or why there is none."""
        try:
            await self.start()
            async with asyncio.timeout(_BUSY_FACTOR * job.seconds):
                await self._send(pickle.dumps(job, protocol=pickle.HIGHEST_PROTOCOL))
                message = await self._receive()
            self._is_ending = message.startswith(LAST_OUTCOME)
            return message[len(OUTCOME) :]
        except TimeoutError:
            await self.stop()
            return TooMuch(f"{_BUSY_FACTOR * job.seconds:.0f} seconds").reply
        except (EOFError, ConnectionError):
            return self._why_ended(await self.stop(), job)
        except BaseException:
            await self.stop()  # What it is working on would be taken for the outcome of the next job.
            raise

    async def stop(self) -> int | None:
        """End the process; its exit code."""
        process, self._process = self._process, None
        if process is None:
            return None
        if hasattr(self, "_writer"):
            self._writer.close()
        with suppress(TimeoutError):
            # One that was killed by a limit of its own says so by its exit code.
            return await asyncio.wait_for(process.wait(), 0.5)
        with suppress(ProcessLookupError):
            process.kill()
        return await process.wait()

    def _why_ended(self, code: int | None, job: PreprocessingJob) -> ErrorReply:
        match None if code is None else -code:
            case signal.SIGPROF:
                return TooMuch.processor_time(job).reply
            case signal.SIGABRT | signal.SIGSEGV:  # How native code ends that gets no memory.
                return TooMuch.memory(self._spec).reply
            case signal.SIGKILL:
                message = "the preprocessing worker was killed; try again"
                return ErrorReply(503, message, code="preprocessing_failed")
        logger.error("a preprocessing worker ended with exit code %s", code)
        return MISTAKE

    async def _send(self, data: bytes) -> None:
        self._writer.write(LENGTH.pack(len(data)))
        self._writer.write(data)
        await self._writer.drain()

    async def _receive(self) -> bytes:
        (length,) = LENGTH.unpack(await self._reader.readexactly(LENGTH.size))
        return await self._reader.readexactly(length)


_Turn = asyncio.Future[_Worker]
"""Of a job that waits: the worker that it is given."""


def _environment() -> dict[str, str]:
    """The child finds the same modules as this process. Its tokenizer starts no threads: they take memory."""
    module_path = os.pathsep.join(path for path in sys.path if path)
    return {**os.environ, "PYTHONPATH": module_path, "TOKENIZERS_PARALLELISM": "false"}
