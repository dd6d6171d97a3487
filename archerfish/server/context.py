"""Everything that the service knows of a request besides its body."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from starlette.requests import HTTPConnection

from archerfish.request import RequestClass
from archerfish.server.keys import Key
from archerfish.server.tracing import RequestTrace

if TYPE_CHECKING:
    from archerfish.server.response_store import ConversationHistory

ANONYMOUS = Key(name="")


@dataclass(slots=True)
class RequestContext:
    """One request to the service, from a client or from a batch."""

    request_id: str
    """For logs and replies."""
    caller: Key = ANONYMOUS
    request_class: RequestClass = RequestClass.ONLINE
    log: dict[str, Any] = field(default_factory=dict)
    """Further fields of its line in the log."""
    trace: RequestTrace | None = None
    history: "ConversationHistory | None" = None
    """The stored conversation that the request continues."""
    reply_headers: dict[str, str] = field(default_factory=dict)
    """Headers of the response: what is left of the caller's limits."""

    @property
    def tenant(self) -> str:
        """The name of the caller's key."""
        return self.caller.name


def context_of(http: HTTPConnection) -> RequestContext:
    """Return the context that the middleware gave a request."""
    context: RequestContext = http.state.context
    return context
