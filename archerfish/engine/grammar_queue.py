"""Compiles the grammars of requests in a thread, ahead of the engine's steps: no step waits for a compiler."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from queue import SimpleQueue
from typing import NamedTuple

from archerfish.request import Request, Structured, TokenEvent
from archerfish.sampling.grammar_cache import CompiledGrammar, GrammarCache


@dataclass(slots=True)
class _OpenRequest:
    """The grammar of an open request: while it is referenced here, no row has to compile it again."""

    grammar: CompiledGrammar
    open_indices: set[int]
    """Sequences that may still take up a row."""


class _Compiled(NamedTuple):
    request: Request
    grammar: CompiledGrammar


class GrammarCompileQueue:
    """Requests with a grammar wait here until it is compiled."""

    def __init__(self, grammars: GrammarCache | None, on_ready: Callable[[], None]) -> None:
        """`on_ready` is called from a thread when a request is ready."""
        self._grammars = grammars
        self._on_ready = on_ready
        self._thread = ThreadPoolExecutor(1, "grammars")
        self._waiting: dict[str, Request] = {}
        self._compiled: SimpleQueue[_Compiled] = SimpleQueue()
        self._open: dict[str, _OpenRequest] = {}

    def begin(self, request: Request) -> bool:
        """Return whether the request has to wait; it is then among those `ready`, later."""
        structured = request.params.structured
        if structured is None or self._grammars is None:
            return False
        grammar = self._grammars.find(structured)
        if grammar is not None:
            self._retain(request, grammar)
            return False
        self._waiting[request.request_id] = request
        self._thread.submit(self._compile, request, structured, self._grammars)
        return True

    def ready(self) -> Iterator[Request]:
        """Yield requests whose grammar was compiled since the last call."""
        while not self._compiled.empty():
            request, grammar = self._compiled.get()
            # An id may have been cancelled and used again meanwhile.
            if self._waiting.get(request.request_id) is request:
                del self._waiting[request.request_id]
                self._retain(request, grammar)
                yield request

    def forget(self, request_id: str) -> None:
        """Drop a waiting request that was cancelled."""
        self._waiting.pop(request_id, None)

    def release(self, request_id: str) -> None:
        """Release the grammar of a request that the engine refused."""
        self._open.pop(request_id, None)

    def ended(self, events: Iterable[TokenEvent]) -> None:
        """Release the grammars of requests that have ended."""
        for event in events if self._open else ():
            open_request = self._open.get(event.request_id) if event.finish_reason is not None else None
            if open_request is not None:
                open_request.open_indices.discard(event.sequence_index)
                if not open_request.open_indices:
                    del self._open[event.request_id]

    def _compile(self, request: Request, structured: Structured, grammars: GrammarCache) -> None:
        self._compiled.put(_Compiled(request, grammars.get(structured)))
        self._on_ready()

    def _retain(self, request: Request, grammar: CompiledGrammar) -> None:
        self._open[request.request_id] = _OpenRequest(grammar, set(range(request.params.n)))
