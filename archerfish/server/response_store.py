"""Responses that are being written, and those that are kept: in memory, for each tenant so many and no more."""

from collections import OrderedDict
from dataclasses import dataclass

from starlette.requests import HTTPConnection

from archerfish.server.background_response import BackgroundResponse

MOST_RESPONSES = 1000
MOST_BYTES = 64 * 1024 * 1024
"""What is kept for one tenant; what nobody has asked for the longest goes first."""


class History:
    """The messages of a conversation so far. One that continues it shares them."""

    def __init__(self, added: bytes, before: "History | None" = None) -> None:
        """`added` are the latest messages, as JSON."""
        self._added = added
        self._before = before
        self.size: int = len(self._added) + (0 if before is None else before.size)

    @property
    def turns(self) -> list[bytes]:
        """Messages from the first to the latest, as JSON lists."""
        turns: list[bytes] = []
        history: History | None = self
        while history is not None:
            turns.append(history._added)
            history = history._before
        return turns[::-1]


@dataclass(frozen=True, slots=True)
class Kept:
    """A response that has ended."""

    response: bytes
    """JSON."""
    status: str
    history: History
    events: tuple[bytes, ...] | None = None
    """If it may be followed again."""

    @property
    def size(self) -> int:
        return len(self.response) + self.history.size + sum(len(one) for one in self.events or ())


class ResponseStore:
    """By tenant and id: nobody finds what another has asked for."""

    def __init__(self, most_responses: int = MOST_RESPONSES, most_bytes: int = MOST_BYTES) -> None:
        self._most_responses = most_responses
        self._most_bytes = most_bytes
        self._running: dict[tuple[str, str], BackgroundResponse] = {}
        self._kept: dict[str, OrderedDict[str, Kept]] = {}
        self._num_bytes: dict[str, int] = {}

    def running(self, tenant: str, response_id: str) -> BackgroundResponse | None:
        return self._running.get((tenant, response_id))

    def begin(self, tenant: str, run: BackgroundResponse) -> None:
        self._running[tenant, run.response_id] = run

    def end(self, tenant: str, response_id: str, kept: Kept | None) -> None:
        """It runs no more; keep it, if anything is given to keep."""
        was_running = self._running.pop((tenant, response_id), None) is not None
        if kept is None or not was_running or kept.size > self._most_bytes:
            return
        responses = self._kept.setdefault(tenant, OrderedDict())
        responses[response_id] = kept
        self._num_bytes[tenant] = self._num_bytes.get(tenant, 0) + kept.size
        while len(responses) > self._most_responses or self._num_bytes[tenant] > self._most_bytes:
            self.forget(tenant, next(iter(responses)))

    def find(self, tenant: str, response_id: str) -> Kept | None:
        """One that has ended."""
        responses = self._kept.get(tenant, OrderedDict())
        if response_id in responses:
            responses.move_to_end(response_id)
        return responses.get(response_id)

    def forget(self, tenant: str, response_id: str) -> bool:
        """Whether there was such a one. One that is running is cancelled."""
        run = self._running.pop((tenant, response_id), None)
        if run is not None:
            run.cancel()
            return True
        kept = self._kept.get(tenant, OrderedDict()).pop(response_id, None)
        if kept is not None:
            self._num_bytes[tenant] -= kept.size
        return kept is not None


def store_of(http: HTTPConnection) -> ResponseStore:
    """The application's; made when it is first asked for."""
    state = http.app.state
    if not hasattr(state, "responses"):
        state.responses = ResponseStore()
    store: ResponseStore = state.responses
    return store
