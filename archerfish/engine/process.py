"""The engine in a process of its own: takes requests from a socket, steps, sends the events, and waits for no client.

python -m archerfish.engine.process ADDRESS
"""

import ctypes
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING

import zmq

from archerfish.console import enable_logging
from archerfish.engine.grammar_queue import GrammarCompileQueue
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
    read_to_engine,
)
from archerfish.errors import RequestError, UserError
from archerfish.gc_freeze import import_frozen_from_gc
from archerfish.machine.gpu import wake_gpu
from archerfish.machine.peak import Peak
from archerfish.request import Request

if TYPE_CHECKING:
    from archerfish.engine.build import Assembly
    from archerfish.engine.engine import Engine
    from archerfish.sampling.grammar_cache import GrammarCache

_PR_SET_PDEATHSIG = 1
_LOADING_STEP = 0.05
"""Share of the weights between two reports of progress."""

_LONGEST_READ = 0.02
"""Seconds for which messages are read between two steps."""


class Channel:
    """One end of the conversation. Sending never waits: a reader that is slow makes a queue, not a stop."""

    def __init__(self, address: str) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.PAIR)
        self._socket.set_hwm(0)
        self._socket.connect(address)
        self._wakeup_read, self._wakeup_write = os.pipe()
        os.set_blocking(self._wakeup_write, False)
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self._poller.register(self._wakeup_read, zmq.POLLIN)

    def send(self, message: FromEngine) -> None:
        self._socket.send(encode(message), copy=True)

    def receive(self, timeout_ms: int) -> ToEngine | None:
        """Return the next message, or None if none comes in time or `wake` is called."""
        ready = dict(self._poller.poll(timeout_ms))
        if self._wakeup_read in ready:
            os.read(self._wakeup_read, 4096)
        return read_to_engine(self._socket.recv()) if self._socket in ready else None

    def wake(self) -> None:
        """There is news of another kind. From any thread."""
        with suppress(BlockingIOError):  # It is ringing already.
            os.write(self._wakeup_write, b"!")

    def close(self) -> None:
        self._socket.close(linger=2000)
        self._context.term()


class EngineLoop:
    """Steps while there is work, and listens between steps."""

    def __init__(
        self,
        engine: "Engine",
        channel: Channel,
        grammars: "GrammarCache | None",
        idle_work: Iterator[FromEngine | None],
        heartbeat_ms: int,
    ) -> None:
        """`idle_work` is done piece by piece where there is nothing else to do; what a piece brings is sent.

        Without work a heartbeat is sent every `heartbeat_ms`, and the parent looked for.
        """
        self._engine = engine
        self._channel = channel
        self._grammar_queue = GrammarCompileQueue(grammars, channel.wake)
        self._idle_work = idle_work
        self._heartbeat_ms = heartbeat_ms
        self._running = True
        self._parent = os.getppid()
        engine.scheduler.expects_more = True

    def run(self) -> None:
        while self._running and self._engine.stopped is None:
            self._listen()
            if self._running and self._engine.has_work:
                self._step()

    def _listen(self) -> None:
        """Take the messages that have come; without work, wait for one.

        Beside work, messages that take long to read wait for the next step: large requests delay no others' steps.
        """
        timeout = 0 if self._engine.has_work else self._heartbeat_ms
        heard, end = False, time.monotonic() + _LONGEST_READ
        while (message := self._channel.receive(timeout)) is not None:
            self._take(message)
            timeout, heard = 0, True
            if self._engine.has_work and time.monotonic() > end:
                break
        for request in self._grammar_queue.ready():
            self._add(request)
            heard = True
        if timeout and not heard:
            if (report := next(self._idle_work, None)) is not None:
                self._channel.send(report)
            self._channel.send(Heartbeat())
        if os.getppid() != self._parent:
            self._running = False  # The process that wanted the answers is gone.

    def _take(self, message: ToEngine) -> None:
        match message:
            case Request():
                if not self._grammar_queue.begin(message):
                    self._add(message)
            case Cancel(request_id, index, reason):
                self._grammar_queue.forget(request_id)
                self._grammar_queue.ended(self._engine.cancel(request_id, index, reason))
                if not self._engine.has_work:
                    # No step will follow to tell that the blocks are free.
                    self._channel.send(Stepped([], self._engine.state()))
            case ShowBlocks():
                self._channel.send(Blocks(self._engine.scheduler.tables.pool.states()))
            case Stop():
                self._running = False
            case Start():
                raise AssertionError("an engine is started once")

    def _add(self, request: Request) -> None:
        try:
            self._engine.add(request)
        except RequestError as error:
            self._grammar_queue.release(request.request_id)
            self._channel.send(Refused(request.request_id, str(error)))

    def _step(self) -> None:
        steps_before = self._engine.counts.num_steps
        events = self._engine.step()
        if self._engine.stopped is not None:
            # These ends are the engine's own: the parent, which hears why, ends what is open as failed with the engine.
            events = [event for event in events if event.error != self._engine.stopped]
        self._grammar_queue.ended(events)
        self._channel.send(Stepped(events, self._engine.state()))
        if self._engine.counts.num_steps == steps_before and self._engine.stopped is None:
            self._wait_until_something_can_start()

    def _wait_until_something_can_start(self) -> None:
        """A batch may wait to be full: until then only a message can bring work."""
        wait = self._engine.scheduler.seconds_until_start(self._engine.clock())
        timeout = self._heartbeat_ms if wait is None else min(self._heartbeat_ms, max(1, int(wait * 1000)))
        message = self._channel.receive(timeout)
        if message is not None:
            self._take(message)


def main(address: str) -> int:
    _leave_signals_to_the_parent()
    channel = Channel(address)
    try:
        start = channel.receive(60_000)
        assert isinstance(start, Start), "the first message says what to build"
        enable_logging(as_json=start.log_json)
        return _serve(start, channel)
    finally:
        channel.close()


def _serve(start: Start, channel: Channel) -> int:
    try:
        assembly = _build(start, channel)
    except Exception as error:
        message = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
        channel.send(Ending(message, can_be_fixed=isinstance(error, UserError)))
        return 1
    # Before it is ready, so that the first state already describes the cache, though no step has been made.
    channel.send(Stepped([], assembly.engine.state()))
    channel.send(Ready(_facts(start, assembly)))
    engine = assembly.engine
    idle_work = _idle_work(assembly, measures_peak=start.measures_peak)
    EngineLoop(engine, channel, assembly.grammars, idle_work, start.heartbeat_ms).run()
    if engine.stopped is not None:
        channel.send(Ending(engine.stopped, can_be_fixed=False))
        return 1
    engine.close()
    return 0


def _build(start: Start, channel: Channel) -> "Assembly":
    module, _, name = start.builder.partition(":")
    reported = 0.0

    def report(share: float) -> None:
        nonlocal reported
        if share - reported >= _LOADING_STEP:
            reported = share
            channel.send(Loading(share))

    if start.config.device != "cpu":
        wake_gpu()
    # It brings torch, which a GPU need not wait for.
    with import_frozen_from_gc(module):
        build = getattr(import_module(module), name)
    assembly: Assembly = build(start.config, report)
    return assembly


def _facts(start: Start, assembly: "Assembly") -> EngineFacts:
    config = assembly.config
    return EngineFacts(
        model=start.config.model or assembly.directory.name,
        family=assembly.arch.family,
        tokenizer_directory=None if assembly.tokenizer_directory is None else str(assembly.tokenizer_directory),
        vocab_size=assembly.arch.vocab_size,
        max_model_len=config.max_model_len,
        max_positions=None if assembly.arch.can_extend_positions else assembly.arch.max_positions,
        max_num_seqs=config.max_num_seqs,
        block_size=config.block_size,
        num_blocks=assembly.cache_size.num_blocks,
        dtype=config.dtype,
        device=config.device,
        speculation_methods=assembly.speculation_methods,
        hidden_size=assembly.arch.hidden_size,
        embedding_sizes=assembly.embedding_sizes,
        recommended=dict(assembly.recommended),
        info=assembly.info,
    )


def _idle_work(assembly: "Assembly", *, measures_peak: bool) -> Iterator[FromEngine | None]:
    """In pieces of a fraction of a second each: a request that comes meanwhile waits no longer."""
    if assembly.grammars is not None:
        # It holds the interpreter, so that even in a thread every step would wait for it.
        assembly.grammars.load_vocabulary()
        yield None
    if not measures_peak:
        return
    from archerfish.machine.measure import measured_bandwidth, measured_flops

    flops = measured_flops(assembly.config.dtype, assembly.config.device)
    yield None
    yield PeakMeasured(Peak(flops, measured_bandwidth(assembly.config.device)))


def _leave_signals_to_the_parent() -> None:
    """A Ctrl-C or a stop of the whole group is the parent's to answer: it lets requests finish first."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    code = main(sys.argv[1])
    # Libraries would tear down threads and tables that are not used again.
    sys.stderr.flush()
    os._exit(code)
