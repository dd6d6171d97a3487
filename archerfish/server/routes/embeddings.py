"""/v1/embeddings."""

from fastapi import APIRouter, Request
from starlette.responses import Response

from archerfish.api.bodies.embeddings import EmbeddingBody
from archerfish.api.embeddings import Embedding
from archerfish.server.answers import close, complete, unless_disconnected
from archerfish.server.replies import call_reply
from archerfish.server.requests import takes
from archerfish.server.service import service_of

router = APIRouter()


@router.post("/v1/embeddings", openapi_extra=takes(EmbeddingBody))
async def embeddings(http: Request) -> Response:
    """The mean of the model's last states over each input."""
    service = service_of(http)
    embedding: Embedding = await service.read(http, "/v1/embeddings")
    answers = await service.open_all(http, embedding.inputs)
    try:
        return await call_reply(embedding, await unless_disconnected(http, complete(answers)), answers[0].headers)
    finally:
        close(answers)
