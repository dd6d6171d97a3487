"""The served model, the version, and liveness, readiness and state of the service."""

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from archerfish import __version__
from archerfish.server.replies import json_reply
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


def _model(service: Service, name: str) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": service.started_at,
        "owned_by": "archerfish",
        "max_model_len": service.facts.max_model_len,
    }


@router.get("/health/live")
async def live(http: Request) -> Response:
    """200, or 503 while the engine is silent for longer than --stall-timeout, and once it has ended for good.

    Silent is one that finishes no step, or sends no heartbeat while it has nothing to do. The service itself kills and
    replaces it, after which this is 200 again: 503 for long means that the whole service should be started again.
    """
    health = service_of(http).health()
    return json_reply(health, status=200 if health["live"] else 503)


@router.get("/health/ready")
async def ready(http: Request) -> Response:
    """200 if a request would be taken now."""
    health = service_of(http).health()
    return json_reply(health, status=200 if health["ready"] else 503)


@router.get("/health")
async def health(http: Request) -> Response:
    """200 if it is alive and ready."""
    health = service_of(http).health()
    return json_reply(health, status=200 if health["live"] and health["ready"] else 503)
