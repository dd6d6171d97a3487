"""Exceptions as HTTP errors: OpenAI's {"error": {message, type, param, code}}, or Anthropic's below /v1/messages."""

from collections.abc import Mapping
from typing import Any

import msgspec
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from archerfish.api.errors import MISTAKE, ErrorReply, error_reply, validation_reply
from archerfish.console import logger
from archerfish.errors import EngineStopped, UserError

_ANTHROPIC_PATH = "/v1/messages"


class ApiError(HTTPException):
    """Answered instead of what was asked for. One of the framework's, so that it passes unchanged wherever raised."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(status, message, dict(headers or {}))
        self.param = param
        self.code = code

    @classmethod
    def of(cls, reply: ErrorReply) -> "ApiError":
        return cls(reply.status, reply.message, param=reply.param, code=reply.code)

    @property
    def reply(self) -> ErrorReply:
        """The error without its headers."""
        return ErrorReply(self.status_code, self.detail, self.param, self.code)

    @property
    def body(self) -> dict[str, Any]:
        """JSON for clients of OpenAI's API."""
        return self.reply.body


def as_api_error(error: Exception) -> ApiError:
    """Return the error that a client gets for an exception."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, (UserError, ValidationError)):
        return ApiError.of(error_reply(error))
    if isinstance(error, RequestValidationError):
        return ApiError.of(validation_reply(error.errors(), error.body))
    if isinstance(error, EngineStopped):
        return ApiError(503, str(error), headers={"Retry-After": "5"})
    if isinstance(error, HTTPException):
        return ApiError(error.status_code, str(error.detail), headers=error.headers)
    logger.exception("a request failed", exc_info=error)
    return ApiError.of(MISTAKE)


def error_response(error: ApiError, path: str) -> Response:
    """Return an error in the format of the API that the path belongs to."""
    is_anthropic = path == _ANTHROPIC_PATH or path.startswith(_ANTHROPIC_PATH + "/")
    body = msgspec.json.encode(error.reply.anthropic_body if is_anthropic else error.body)
    return Response(body, error.status_code, error.headers, media_type="application/json")


def install_error_handlers(app: FastAPI) -> None:
    async def answer(http: Request, error: Exception) -> Response:
        return error_response(as_api_error(error), http.scope["path"])

    for kind in (ApiError, UserError, EngineStopped, RequestValidationError, HTTPException, Exception):
        app.add_exception_handler(kind, answer)
