"""Files, batches and results of lines as plain data, and as the objects of OpenAI's API."""

import json
import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from archerfish.api.errors import ErrorReply

_NOT_ASCII = re.compile(r"[^\x00-\x7f]+")


class BatchStatus(Enum):
    """The status of a batch."""

    VALIDATING = "validating"
    IN_PROGRESS = "in_progress"
    FINALIZING = "finalizing"
    CANCELLING = "cancelling"
    COMPLETED = "completed"
    FAILED = "failed"
    EXPIRED = "expired"
    CANCELLED = "cancelled"

    @property
    def is_open(self) -> bool:
        """Whether the status will change."""
        return self in OPEN_STATUSES


OPEN_STATUSES = (BatchStatus.VALIDATING, BatchStatus.IN_PROGRESS, BatchStatus.FINALIZING, BatchStatus.CANCELLING)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFile:
    """The metadata of a file. Times are whole seconds since 1970."""

    file_id: str
    tenant: str
    filename: str
    purpose: str
    num_bytes: int
    created_at: int

    @property
    def object_id(self) -> str:
        return self.file_id

    def as_object(self) -> dict[str, Any]:
        """Return the object that GET /v1/files/{id} replies with."""
        return {
            "id": self.file_id,
            "object": "file",
            "bytes": self.num_bytes,
            "created_at": self.created_at,
            "expires_at": None,
            "filename": self.filename,
            "purpose": self.purpose,
            "status": "processed",
            "status_details": None,
        }


class BatchError(NamedTuple):
    """A reason why a batch failed as a whole; there may be several."""

    code: str
    message: str
    line: int | None = None
    """Line number, from 1; None if no single line is meant."""
    param: str | None = None


class RequestCounts(NamedTuple):
    total: int = 0
    completed: int = 0
    """Lines in the output file, also before it is written."""
    failed: int = 0
    """Lines in the error file, also before it is written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """A batch at the time it was read. Times are whole seconds since 1970."""

    batch_id: str
    tenant: str
    endpoint: str
    input_file_id: str
    completion_window: str
    metadata: Mapping[str, str] | None
    status: BatchStatus
    created_at: int
    expires_at: int
    in_progress_at: int | None = None
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None
    counts: RequestCounts = field(default_factory=RequestCounts)
    output_file_id: str | None = None
    error_file_id: str | None = None
    errors: tuple[BatchError, ...] = ()
    outcome: BatchStatus | None = None
    """While finalizing, the next status."""

    @property
    def object_id(self) -> str:
        return self.batch_id

    def as_object(self) -> dict[str, Any]:
        """Return the object that GET /v1/batches/{id} replies with."""
        errors = {"object": "list", "data": [error._asdict() for error in self.errors]} if self.errors else None
        return {
            "id": self.batch_id,
            "object": "batch",
            "endpoint": self.endpoint,
            "errors": errors,
            "input_file_id": self.input_file_id,
            "completion_window": self.completion_window,
            "status": self.status.value,
            "output_file_id": self.output_file_id,
            "error_file_id": self.error_file_id,
            "created_at": self.created_at,
            "in_progress_at": self.in_progress_at,
            "expires_at": self.expires_at,
            "finalizing_at": self.finalizing_at,
            "completed_at": self.completed_at,
            "failed_at": self.failed_at,
            "expired_at": self.expired_at,
            "cancelling_at": self.cancelling_at,
            "cancelled_at": self.cancelled_at,
            "request_counts": self.counts._asdict(),
            "metadata": None if self.metadata is None else dict(self.metadata),
        }


_Item = TypeVar("_Item", StoredFile, Batch)


class ListPage(NamedTuple, Generic[_Item]):
    """A part of a list, in its order."""

    items: list[_Item]
    has_more: bool

    def as_object(self) -> dict[str, Any]:
        """Return the object that the list endpoints reply with."""
        return {
            "object": "list",
            "data": [item.as_object() for item in self.items],
            "first_id": self.items[0].object_id if self.items else None,
            "last_id": self.items[-1].object_id if self.items else None,
            "has_more": self.has_more,
        }


class LineResult(NamedTuple):
    """The reply to one line. A status of 200 to 299 is an answer, any other an error."""

    status_code: int
    body: Mapping[str, Any]
    request_id: str


class LineReply(NamedTuple):
    """The reply to one line, with its body in JSON."""

    status_code: int
    body: bytes
    """The body in JSON."""
    request_id: str


class LineRecord(NamedTuple):
    """One line of the output or the error file, as it is stored."""

    line: int
    is_error: bool
    text: str
    """JSON without a line end. In ASCII, because many programs split lines at characters that JSON does not escape."""


def answered(line: int, custom_id: str, result: LineResult | LineReply, record_id: str | None = None) -> LineRecord:
    """Return the record of a reply, good or bad. A body that is not valid JSON raises ValueError or TypeError."""
    # JSON has no infinity, but Python writes it.
    written = json.dumps(result.body, allow_nan=False) if isinstance(result, LineResult) else _on_one_line(result.body)
    status, request_id = json.dumps(result.status_code), json.dumps(result.request_id)
    response = f'{{"status_code": {status}, "request_id": {request_id}, "body": {written}}}'
    text = _record_text(record_id, custom_id, response, "null")
    return LineRecord(line, not 200 <= result.status_code < 300, text)


def unanswered(line: int, custom_id: str, code: str, message: str, record_id: str | None = None) -> LineRecord:
    """Return the record of a line without any reply."""
    error = json.dumps({"code": code, "message": message})
    return LineRecord(line, True, _record_text(record_id, custom_id, "null", error))


def error_result(reply: ErrorReply) -> LineResult:
    """Return an error as the result of a line."""
    return LineResult(reply.status, reply.body, new_id("req_"))


def new_id(prefix: str) -> str:
    return prefix + uuid.uuid4().hex


def _record_text(record_id: str | None, custom_id: str, response: str, error: str) -> str:
    """Return a record with this response and error, which are JSON."""
    name = json.dumps(record_id or new_id("batch_req_"))
    return f'{{"id": {name}, "custom_id": {json.dumps(custom_id)}, "response": {response}, "error": {error}}}'


def _on_one_line(content: bytes) -> str:
    """Return the same JSON in ASCII and without line ends. It is not parsed: it may be large."""
    msgspec.json.decode(content, type=msgspec.Raw)  # Raises ValueError if it is not JSON.
    # JSON has line ends only between values.
    text = content.decode("utf-8").replace("\n", " ").replace("\r", " ")
    return text if text.isascii() else _NOT_ASCII.sub(lambda match: json.dumps(match[0])[1:-1], text)


def errors_text(errors: Sequence[BatchError]) -> str | None:
    """Return errors in the format of the database."""
    return json.dumps([list(error) for error in errors]) if errors else None


def errors_from_text(text: str | None) -> tuple[BatchError, ...]:
    return () if text is None else tuple(BatchError(*values) for values in json.loads(text))
