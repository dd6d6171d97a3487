"""Compiles the forms of requests ahead of the engine's steps, in a thread: no step waits for one. Knows no socket."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from queue import SimpleQueue
from typing import NamedTuple

from archerfish.request import Request, Structured, TokenEvent
from archerfish.sampling.compiled import CompiledForm, CompiledForms


@dataclass(slots=True)
class _Held:
    """The form of a request that is open: while it is held here, no row will have to compile it."""

    form: CompiledForm
    unended: set[int]
    """Answers that may still take up a row."""


class _Compiled(NamedTuple):
    request: Request
    form: CompiledForm


class Preparation:
    """Requests with a form wait here until it is compiled."""

    def __init__(self, forms: CompiledForms | None, tell: Callable[[], None]) -> None:
        """`tell` is called from a thread when a request is ready."""
        self._forms = forms
        self._tell = tell
        self._thread = ThreadPoolExecutor(1, "forms")
        self._waiting: dict[str, Request] = {}
        self._compiled: SimpleQueue[_Compiled] = SimpleQueue()
        self._held: dict[str, _Held] = {}

    def begin(self, request: Request) -> bool:
        """Whether the request has to wait; it is then among those `ready`, later."""
        structured = request.params.structured
        if structured is None or self._forms is None:
            return False
        form = self._forms.find(structured)
        if form is not None:
            self._hold(request, form)
            return False
        self._waiting[request.request_id] = request
        self._thread.submit(self._compile, request, structured, self._forms)
        return True

    def ready(self) -> Iterator[Request]:
        """Requests whose form is there now."""
        while not self._compiled.empty():
            request, form = self._compiled.get()
            # An id may have been given up and used again meanwhile.
            if self._waiting.get(request.request_id) is request:
                del self._waiting[request.request_id]
                self._hold(request, form)
                yield request

    def forget(self, request_id: str) -> None:
        """Nobody waits for the request any more."""
        self._waiting.pop(request_id, None)

    def release(self, request_id: str) -> None:
        """The engine did not take the request."""
        self._held.pop(request_id, None)

    def ended(self, events: Iterable[TokenEvent]) -> None:
        """Let go of what has ended."""
        for event in events if self._held else ():
            held = self._held.get(event.request_id) if event.finish_reason is not None else None
            if held is not None:
                held.unended.discard(event.sequence_index)
                if not held.unended:
                    del self._held[event.request_id]

    def _compile(self, request: Request, structured: Structured, forms: CompiledForms) -> None:
        self._compiled.put(_Compiled(request, forms.get(structured)))
        self._tell()

    def _hold(self, request: Request, form: CompiledForm) -> None:
        self._held[request.request_id] = _Held(form, set(range(request.params.n)))
