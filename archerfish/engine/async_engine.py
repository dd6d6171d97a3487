"""The engine process as seen from an event loop: requests in, their events out; started again when it dies."""

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Callable
from enum import Enum

import zmq
import zmq.asyncio

from archerfish.config.settings import EngineConfig
from archerfish.console import logger
from archerfish.engine.outputs import RequestStream
from archerfish.engine.socket_directory import SocketDirectory
from archerfish.engine.wire import (
    Blocks,
    Cancel,
    Ending,
    EngineFacts,
    FromEngine,
    Heartbeat,
    Loading,
    PeakMeasured,
    Ready,
    Refused,
    ShowBlocks,
    Start,
    Stepped,
    Stop,
    ToEngine,
    encode,
    read_from_engine,
)
from archerfish.errors import EngineStopped
from archerfish.machine.cpu import cpu_seconds_of
from archerfish.machine.peak import Peak
from archerfish.metrics.state import EngineState
from archerfish.request import FinishReason, Request, TokenEvent
from archerfish.tokenizer import Tokenizer

MOST_DEATHS = 3
DEATHS_WINDOW = 60.0
"""Seconds: with so many deaths within them, another start would only be the next."""

DEFAULT_BUILDER = "archerfish.engine.build:build"

_LONGEST_WATCH_INTERVAL = 1.0
"""Seconds between two looks at whether the engine still makes progress."""
_LOADING_PATIENCE = 10
"""Stall timeouts that an engine may load without any progress: it may wait for a disk or for the network."""


OnStep = Callable[[list[TokenEvent], EngineState], None]
"""Hears of every step, before those who wait for its events."""


class EngineStatus(Enum):
    LOADING = "loading"
    READY = "ready"
    RESTARTING = "restarting"
    ENDED = "ended"


class AsyncEngine:
    """One engine process after another, always at most one."""

    def __init__(
        self,
        config: EngineConfig,
        *,
        builder: str = DEFAULT_BUILDER,
        on_step: OnStep = lambda _events, _state: None,
        on_peak: Callable[[Peak], None] | None = None,
        on_death: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
        log_json: bool = False,
        stall_timeout: float | None = None,
    ) -> None:
        """An engine that was ready and is silent for `stall_timeout` seconds is killed and started again."""
        self._config = config
        self._log_json = log_json
        self._builder = builder
        self._on_step = on_step
        self._on_peak = on_peak
        self._on_death = on_death
        self._clock = clock
        self._open: dict[str, RequestStream] = {}
        self._stall_timeout = stall_timeout
        self._directory = SocketDirectory()
        self._context = zmq.asyncio.Context()
        self._socket: zmq.asyncio.Socket | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._deaths: deque[float] = deque()
        self._blocks: asyncio.Future[bytes] | None = None
        self._changed = asyncio.Event()
        self.status = EngineStatus.LOADING
        self.loaded_share = 0.0
        self.facts: EngineFacts | None = None
        self.ending: Ending | None = None
        """Why it has ended for good."""
        self.num_restarts = 0
        self.last_progress = clock()
        """When the engine last sent the outcome of a step or, without work, a heartbeat."""

    # -- its life -------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Begin to load. `wait_ready` tells when that is done."""
        self._keeper = asyncio.create_task(self._keep_running(), name="engine keeper")

    async def wait_ready(self) -> EngineFacts:
        """Facts of the engine once it is ready, or EngineStopped if it never will be."""
        while self.status not in (EngineStatus.READY, EngineStatus.ENDED):
            self._changed.clear()
            await self._changed.wait()
        if self.facts is None or self.status is EngineStatus.ENDED:
            raise EngineStopped(self.ending.reason if self.ending is not None else "the engine was stopped")
        return self.facts

    async def wait_ended(self) -> Ending | None:
        """Returns when there will be no engine any more; why, unless it was stopped on purpose."""
        while self.status is not EngineStatus.ENDED:
            self._changed.clear()
            await self._changed.wait()
        return self.ending

    async def stop(self) -> None:
        """End the process; whatever is open fails."""
        self._set_status(EngineStatus.ENDED)
        self._fail_open("the service is stopping")
        if self._keeper is not None:
            self._send(Stop())
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._ended_process(), 5)
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()
        if self._socket is not None:
            self._socket.close(linger=0)
        self._context.term()
        self._directory.remove()

    def fail(self, ending: Ending) -> None:
        """End for good with this reason: `wait_ended` returns it, and whatever is open fails."""
        self.ending = ending
        self._set_status(EngineStatus.ENDED)
        self._fail_open(ending.reason)
        if self._process is not None and self._process.returncode is None:
            self._process.kill()

    def kill(self) -> None:
        """End the process now, also where its event loop runs no more; whatever is open fails."""
        self._set_status(EngineStatus.ENDED)
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.kill(self._process.pid, signal.SIGKILL)
                # Its memory is free when this returns. Its exit code is left for the event loop to read.
                os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
        # Where the event loop is closed, nothing that waits in it can be woken.
        with contextlib.suppress(RuntimeError):
            self._fail_open("the engine was shut down")
        with contextlib.suppress(RuntimeError):
            if self._keeper is not None:
                self._keeper.cancel()
        with contextlib.suppress(RuntimeError):
            self._context.destroy(linger=0)  # With its sockets: what was not sent would be waited for.
        self._socket = None
        self._directory.remove()

    @property
    def _watch_interval(self) -> float:
        """Seconds between heartbeats of an idle engine, and between looks for them."""
        return (
            _LONGEST_WATCH_INTERVAL
            if self._stall_timeout is None
            else min(_LONGEST_WATCH_INTERVAL, self._stall_timeout / 4)
        )

    @property
    def process_id(self) -> int | None:
        return None if self._process is None else self._process.pid

    @property
    def num_open(self) -> int:
        return len(self._open)

    # -- requests -------------------------------------------------------------------------------------------------

    def submit(self, request: Request, prompt: str | None = None, tokenizer: Tokenizer | None = None) -> RequestStream:
        """Give a request to the engine. What its scheduler refuses becomes an error event.

        `prompt` is the text that the output repeats. Without a tokenizer the output has token ids alone.
        """
        if self.status is not EngineStatus.READY:
            raise EngineStopped(f"the engine is {self.status.value}")
        # Late events of a cancelled request are distinguished by its id alone, so no id may come a second time.
        assert request.request_id not in self._open, "every submission has an id of its own"
        message = encode(request)  # Before anything is registered: it may refuse a value.
        stream = RequestStream(request, prompt, tokenizer, self._stop_sequence, self._clock)
        self._open[request.request_id] = stream
        try:
            self._send_bytes(message)
        except BaseException:
            del self._open[request.request_id]
            raise
        return stream

    def cancel(self, request_id: str, index: int | None = None, reason: FinishReason = FinishReason.ABORT) -> None:
        """End a request, or one of its sequences, at the next step."""
        stream = self._open.get(request_id)
        if stream is None:
            return
        stream.give_up(index)
        if stream.has_arrived:
            del self._open[request_id]
        self._send(Cancel(request_id, index, reason))

    def _stop_sequence(self, request_id: str, index: int) -> None:
        self.cancel(request_id, index, FinishReason.STOP)

    async def block_map(self) -> bytes:
        """One byte for each block of the KV cache: 0 free, 1 cached, 2 in use. Empty without an engine."""
        if self.status is not EngineStatus.READY:
            return b""
        if self._blocks is None:
            self._blocks = asyncio.get_running_loop().create_future()
            self._send(ShowBlocks())
        return await asyncio.shield(self._blocks)

    # -- keeping it alive -----------------------------------------------------------------------------------------

    async def _keep_running(self) -> None:
        try:
            while (why := await self._run_until_dead()) is not None:
                if why.can_be_fixed:
                    self.fail(why)
                    return
                logger.warning("%s; starting it again", why.reason)
                self.num_restarts += 1
                self.facts, self.loaded_share, self.ending = None, 0.0, None
                self._set_status(EngineStatus.RESTARTING)
        except Exception as error:
            logger.exception("the engine cannot be supervised")
            self.fail(Ending(f"the engine cannot be supervised: {error}", can_be_fixed=False))

    async def _run_until_dead(self) -> Ending | None:
        """Run one process to its end; return why it ended, or None if there is to be no other."""
        try:
            exit_code = await self._run_once()
        except OSError as error:  # No processes, file handles or memory left.
            self._close_socket()
            why = Ending(f"the engine process cannot be started: {error}", can_be_fixed=False)
        else:
            if self.status is EngineStatus.ENDED:
                return None
            why = self._why(exit_code)
        self._on_death()
        self._fail_open(why.reason)
        now = self._clock()
        self._deaths.append(now)
        while now - self._deaths[0] > DEATHS_WINDOW:
            self._deaths.popleft()
        if len(self._deaths) >= MOST_DEATHS and not why.can_be_fixed:
            times = f"{len(self._deaths)} times in {DEATHS_WINDOW:.0f} seconds"
            self.fail(Ending(f"the engine died {times}, the last time because {why.reason}", can_be_fixed=False))
            return None
        return why

    async def _run_once(self) -> int:
        """One process from its start to its end; the exit code."""
        self._socket = self._context.socket(zmq.PAIR)
        self._socket.set_hwm(0)
        address = f"ipc://{self._directory.path}/{self.num_restarts}"
        self._socket.bind(address)
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "archerfish.engine.process",
            address,
            stdin=asyncio.subprocess.DEVNULL,
            env=_environment(),
        )
        self._send(
            Start(
                self._config,
                self._builder,
                measures_peak=self._on_peak is not None,
                log_json=self._log_json,
                heartbeat_ms=max(1, int(1000 * self._watch_interval)),
            )
        )
        listening = asyncio.create_task(self._listen(self._socket))
        self.last_progress = self._clock()
        watching = asyncio.create_task(self._watch(self._process))
        try:
            exit_code = await self._process.wait()
        finally:
            watching.cancel()
        # What it said before it died is still to be heard, its reason above all.
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._drained(self._socket, listening), 1.0)
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)
        self._close_socket()
        if self._blocks is not None and not self._blocks.done():
            self._blocks.set_result(b"")
        self._blocks = None
        return exit_code

    async def _listen(self, socket: zmq.asyncio.Socket) -> None:
        while True:
            self._hear(read_from_engine(await socket.recv()))

    async def _watch(self, process: asyncio.subprocess.Process) -> None:
        """Kill the process once it has been silent for too long: it hangs, and will not come back.

        While it loads it may be busy with one thing for minutes; it is silent if it also uses no processor time.
        """
        if self._stall_timeout is None:
            return
        interval = self._watch_interval
        last_look, cpu_seconds = self._clock(), 0.0
        while True:
            await asyncio.sleep(interval)
            now = self._clock()
            if now - last_look > interval + self._stall_timeout / 2:
                # This process itself was held up, so what the engine sent meanwhile may still be unread.
                self.last_progress = max(self.last_progress, now - self._stall_timeout / 2)
            last_look = now
            is_loading = self.status in (EngineStatus.LOADING, EngineStatus.RESTARTING) and self.ending is None
            if is_loading:
                used = cpu_seconds_of(process.pid)
                if used is None or used > cpu_seconds:
                    self.last_progress, cpu_seconds = now, used or 0.0
            silent = now - self.last_progress
            if silent > self._stall_timeout * (_LOADING_PATIENCE if is_loading else 1):
                if self.ending is None:
                    reason = f"the engine process made no progress for {silent:.0f} seconds and was killed"
                    self.ending = Ending(reason, can_be_fixed=False)
                process.kill()
                return

    def _close_socket(self) -> None:
        if self._socket is not None:
            self._socket.close(linger=0)
            self._socket = None

    async def _drained(self, socket: zmq.asyncio.Socket, listening: "asyncio.Task[None]") -> None:
        while not listening.done() and await socket.poll(50):
            await asyncio.sleep(0)

    async def _ended_process(self) -> None:
        if self._process is not None:
            await self._process.wait()

    def _hear(self, message: FromEngine) -> None:
        match message:
            case Heartbeat():
                self.last_progress = self._clock()
            case Stepped(events, state):
                self.last_progress = self._clock()
                self._on_step(events, state)
                for event in events:
                    self._deliver(event)
            case Refused(request_id, error):
                stream = self._open.pop(request_id, None)
                if stream is not None:
                    stream.refuse(error)
            case Blocks(state_of_each):
                if self._blocks is not None and not self._blocks.done():
                    self._blocks.set_result(state_of_each)
                self._blocks = None
            case PeakMeasured(peak):
                if self._on_peak is not None:
                    self._on_peak(peak)
            case Loading(share):
                self.loaded_share = share
                self.last_progress = self._clock()
            case Ready(facts):
                self.facts, self.loaded_share = facts, 1.0
                self.last_progress = self._clock()
                self._set_status(EngineStatus.READY)
            case Ending(reason):
                self.ending = message
                self.last_progress = self._clock()  # From here on it has one stall timeout to exit.
                if self.status is EngineStatus.READY:
                    # Before the process is gone: what it was given from here on would fail with it.
                    self._set_status(EngineStatus.RESTARTING)
                self._fail_open(reason)

    def _deliver(self, event: TokenEvent) -> None:
        stream = self._open.get(event.request_id)
        if stream is None:
            return  # Cancelled a moment ago.
        stream.push(event)
        if stream.has_arrived:
            del self._open[event.request_id]

    def _fail_open(self, reason: str) -> None:
        streams, self._open = list(self._open.values()), {}
        for stream in streams:
            stream.fail(reason)

    def _why(self, exit_code: int) -> Ending:
        if self.ending is not None:
            return self.ending
        how = signal.Signals(-exit_code).name if exit_code < 0 else f"exit code {exit_code}"
        return Ending(f"the engine process ended with {how}", can_be_fixed=False)

    def _send(self, message: ToEngine) -> None:
        self._send_bytes(encode(message))

    def _send_bytes(self, message: bytes) -> None:
        if self._socket is not None:
            self._socket.send(message)  # Done at once, or in the background: the queue has no end.

    def _set_status(self, status: EngineStatus) -> None:
        if self.status is not EngineStatus.ENDED:
            self.status = status
        self._changed.set()


def _environment() -> dict[str, str]:
    """The child finds the same modules as this process, also where they were found relative to it."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
