"""Replies as HTTP responses."""

from collections.abc import Mapping

import msgspec
from starlette.responses import Response

_encoder = msgspec.json.Encoder()


def json_reply(value: object, headers: Mapping[str, str] | None = None, status: int = 200) -> Response:
    """Return a response with `value` as JSON; bytes are JSON already."""
    content = value if isinstance(value, bytes) else _encoder.encode(value)
    return Response(content, status, dict(headers or {}), media_type="application/json")
