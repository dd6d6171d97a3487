"""Steps an engine in this process, for everything that has no process of its own for it."""

from collections.abc import Callable

from archerfish.engine.engine import Engine
from archerfish.engine.interrupts import uninterrupted
from archerfish.errors import StepFailed
from archerfish.request import TokenEvent

OnEvent = Callable[[TokenEvent, float], None]
"""Called with each event, and the engine's time at the end of its step."""


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
