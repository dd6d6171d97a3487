"""Reads bodies within limits: their size, their depth, and how long a sender may take."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute
from pydantic_core import from_json

from archerfish.server.errors import ApiError


class LimitedRequest(Request):
    """A request whose body is refused as soon as it is too much."""

    async def body(self) -> bytes:
        if not hasattr(self, "_body"):
            limits = self.app.state.limits
            try:
                self._body = await asyncio.wait_for(self._read(limits.max_body_bytes), limits.body_timeout)
            except TimeoutError:
                seconds = f"{limits.body_timeout:g} seconds"
                raise ApiError(408, f"the body did not arrive within {seconds}; send it faster") from None
        return self._body

    async def json(self) -> Any:
        body = await self.body()
        try:
            # Unlike the standard library's, this parser refuses deep nesting instead of running out of stack.
            return from_json(body)
        except ValueError as error:
            raise ApiError(400, f"the body is not valid JSON: {error}") from None

    async def _read(self, limit: int) -> bytes:
        too_large = ApiError(413, f"the body is larger than {limit:,} bytes; send less, or start with --max-body-bytes")
        declared = self.headers.get("content-length", "")
        if declared.isdigit() and int(declared) > limit:
            raise too_large
        pieces, size = [], 0
        async for piece in self.stream():
            size += len(piece)
            if size > limit:
                raise too_large
            pieces.append(piece)
        return b"".join(pieces)


class LimitedRoute(APIRoute):
    """Gives handlers a LimitedRequest."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def with_limits(request: Request) -> Response:
            return await handle(LimitedRequest(request.scope, request.receive))

        return with_limits
