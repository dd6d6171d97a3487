"""Replies as HTTP responses."""

import asyncio
from collections.abc import Mapping, Sequence

import msgspec
from starlette.responses import Response

from archerfish.api.inputs import EndpointCall
from archerfish.engine.outputs import OutputStream

_encoder = msgspec.json.Encoder()

_MOST_AT_ONCE = 2048
"""Size of replies that are made at once; larger ones are made in a thread, so that others are served meanwhile."""


async def call_reply(call: EndpointCall, written: Sequence[OutputStream], headers: Mapping[str, str]) -> Response:
    """The whole answer to a call."""
    size = sum(one.size for one in written)
    if size <= _MOST_AT_ONCE:
        return json_reply(call.reply(written), headers)
    return await asyncio.to_thread(lambda: json_reply(call.reply(written), headers))


def json_reply(value: object, headers: Mapping[str, str] | None = None, status: int = 200) -> Response:
    """`value` as JSON; bytes are JSON already."""
    content = value if isinstance(value, bytes) else _encoder.encode(value)
    return Response(content, status, dict(headers or {}), media_type="application/json")
