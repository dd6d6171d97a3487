"""/v1/embeddings."""

from fastapi import APIRouter, Request
from starlette.responses import Response

from archerfish.api.bodies.embeddings import EmbeddingBody
from archerfish.api.embeddings import Embedding
from archerfish.server.answers import close, complete, unless_disconnected
from archerfish.server.replies import json_reply
from archerfish.server.requests import LimitedRoute
from archerfish.server.service import service_of

router = APIRouter(route_class=LimitedRoute)


@router.post("/v1/embeddings")
async def embeddings(body: EmbeddingBody, http: Request) -> Response:
    """The mean of the model's last states over each input."""
    service = service_of(http)
    embedding = Embedding(service.model, body)
    answers = await service.open_all(http, embedding.ask)
    try:
        return json_reply(embedding.reply(await unless_disconnected(http, complete(answers))), answers[0].headers)
    finally:
        close(answers)
