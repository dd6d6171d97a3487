"""The served model, token ids of texts, and the version."""

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from archerfish import __version__
from archerfish.api.bodies.tokens import DetokenizeBody, TokenizeBody
from archerfish.server.replies import json_reply
from archerfish.server.requests import takes
from archerfish.server.service import Service, service_of

router = APIRouter()


@router.get("/v1/models")
async def models(http: Request) -> Response:
    """The names of the model that is served."""
    service = service_of(http)
    return json_reply({"object": "list", "data": [_model(service, name) for name in service.model_names]})


@router.get("/v1/models/{name:path}")
async def model(name: str, http: Request) -> Response:
    service = service_of(http)
    service.model.check_name(name)
    return json_reply(_model(service, name))


@router.get("/version")
async def version() -> Response:
    return json_reply({"version": __version__})


@router.post("/tokenize", openapi_extra=takes(TokenizeBody))
async def tokenize(http: Request) -> Response:
    """Token ids of a text, or of a chat as the model's template lays it out."""
    return json_reply(await service_of(http).read_reply(http, "/tokenize"))


@router.post("/detokenize", openapi_extra=takes(DetokenizeBody))
async def detokenize(http: Request) -> Response:
    """The text of token ids."""
    return json_reply(await service_of(http).read_reply(http, "/detokenize"))


def _model(service: Service, name: str) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": service.started_at,
        "owned_by": "archerfish",
        "max_model_len": service.facts.max_model_len,
    }
