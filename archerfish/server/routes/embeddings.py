"""/v1/embeddings."""

import array
import base64
from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from archerfish.request import SamplingParams
from archerfish.server.answers import Answer, unless_disconnected
from archerfish.server.bodies.common import GenerationBody
from archerfish.server.bodies.embeddings import EmbeddingBody
from archerfish.server.replies import json_reply
from archerfish.server.requests import LimitedRoute
from archerfish.server.service import service_of

router = APIRouter(route_class=LimitedRoute)

_PARAMS = SamplingParams(temperature=0.0, max_tokens=1, prompt_embedding=True)


@router.post("/v1/embeddings")
async def embeddings(body: EmbeddingBody, http: Request) -> Response:
    """The mean of the model's last states over each input."""
    service = service_of(http)
    service.check_model(body.model)
    carrier = GenerationBody(user=body.user)
    answers = service.open_all(http, body.inputs, _PARAMS, carrier, add_special_tokens=False)
    try:
        await unless_disconnected(http, _complete(answers))
        data = [
            {"object": "embedding", "index": index, "embedding": _encoded(answer, body.encoding_format)}
            for index, answer in enumerate(answers)
        ]
        num_tokens = sum(len(answer.output.prompt_token_ids) for answer in answers)
        used = {"prompt_tokens": num_tokens, "total_tokens": num_tokens}
        reply = {"object": "list", "data": data, "model": service.model_name, "usage": used}
        return json_reply(reply, answers[0].headers)
    finally:
        for answer in answers:
            answer.close()


async def _complete(answers: Sequence[Answer]) -> None:
    for answer in answers:
        await answer.complete()


def _encoded(answer: Answer, encoding: str) -> Any:
    values = answer.output.prompt_embedding
    assert values is not None, "every prompt that was computed has one"
    return values if encoding == "float" else base64.b64encode(array.array("f", values).tobytes()).decode()
