"""What is served, token ids of texts, and the version."""

from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from archerfish import __version__
from archerfish.api.bodies.tokens import DetokenizeBody, TokenizeBody
from archerfish.engine.intake import Intake
from archerfish.server.beside import read_in_time
from archerfish.server.errors import ApiError
from archerfish.server.replies import json_reply
from archerfish.server.requests import LimitedRoute
from archerfish.server.service import Service, service_of

router = APIRouter(route_class=LimitedRoute)


@router.get("/v1/models")
async def models(http: Request) -> Response:
    """The model that is served."""
    return json_reply({"object": "list", "data": [_model(service_of(http))]})


@router.get("/v1/models/{name:path}")
async def model(name: str, http: Request) -> Response:
    service = service_of(http)
    service.model.check_name(name)
    return json_reply(_model(service))


@router.get("/version")
async def version() -> Response:
    return json_reply({"version": __version__})


@router.post("/tokenize")
async def tokenize(body: TokenizeBody, http: Request) -> Response:
    """Token ids of a text, or of a chat as the model's template lays it out."""
    service = service_of(http)
    service.model.check_name(body.model)
    token_ids = await read_in_time(http, partial(_token_ids, service.intake, body))
    tokenizer = service.intake.tokenizer
    texts = [tokenizer.token_text(token) for token in token_ids] if tokenizer is not None else []
    counts = {"count": len(token_ids), "max_model_len": service.facts.max_model_len, "tokens": token_ids}
    return json_reply({**counts, "token_strs": texts if body.return_token_strs else None})


def _token_ids(intake: Intake, body: TokenizeBody) -> list[int]:
    text = body.prompt
    if body.messages is not None:
        messages = [message.model_dump(exclude_none=True) for message in body.messages]
        text = intake.chat_text(messages, add_generation_prompt=body.add_generation_prompt)
    assert text is not None
    return list(intake.token_ids(text, add_special_tokens=body.add_special_tokens))


@router.post("/detokenize")
async def detokenize(body: DetokenizeBody, http: Request) -> Response:
    service = service_of(http)
    service.model.check_name(body.model)
    token_ids = service.intake.token_ids(body.tokens)
    if service.intake.tokenizer is None:
        raise ApiError(400, "this service was started without a tokenizer")
    return json_reply({"prompt": service.intake.tokenizer.decode(list(token_ids), skip_special_tokens=False)})


def _model(service: Service) -> dict[str, Any]:
    return {
        "id": service.model_name,
        "object": "model",
        "created": service.started_at,
        "owned_by": "archerfish",
        "max_model_len": service.facts.max_model_len,
    }
