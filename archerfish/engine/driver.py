"""Steps an engine in this process, for everything that has none of its own for it. Ctrl-C waits for whole steps."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from archerfish.engine.engine import Engine
from archerfish.errors import StepFailed
from archerfish.request import TokenEvent

OnEvent = Callable[[TokenEvent, float], None]
"""Called with each event, and the engine's time at the end of its step."""


@contextmanager
def uninterrupted() -> Iterator[None]:
    """A first Ctrl-C inside is raised at the end; a second one at once, for work that hangs.

    Does nothing outside the main thread, or where the program handles the signal itself.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    pressed = False

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal pressed
        if pressed:
            signal.default_int_handler(number, frame)
        pressed = True

    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if pressed:
        raise KeyboardInterrupt


class EngineDriver:
    """Runs whole steps: Ctrl-C is raised between them, and an engine that stops raises StepFailed with the reason.

    The engine process has a loop of its own: it listens for messages between steps, and reports a stop to its parent.
    """

    def __init__(self, engine: Engine, on_event: OnEvent) -> None:
        self._engine = engine
        self._on_event = on_event

    def step(self) -> None:
        """Run one step and pass its events on."""
        with uninterrupted():
            events = self._engine.step()
            now = self._engine.clock()
            for event in events:
                self._on_event(event, now)
        if self._engine.stopped is not None:
            raise StepFailed(self._engine.stopped)

    def run(self) -> None:
        """Run steps until the engine has no more work."""
        while self._engine.has_work:
            self.step()
