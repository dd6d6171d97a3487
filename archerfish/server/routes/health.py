"""Whether the service lives, whether it can take work, and how it is."""

from fastapi import APIRouter, Request
from starlette.responses import Response

from archerfish.server.replies import json_reply
from archerfish.server.service import service_of

router = APIRouter()


@router.get("/health/live")
async def live(http: Request) -> Response:
    """200 unless there is work and no step has finished for too long."""
    health = service_of(http).health()
    return json_reply(health, status=200 if health["live"] else 503)


@router.get("/health/ready")
async def ready(http: Request) -> Response:
    """200 if a request would be taken now."""
    health = service_of(http).health()
    return json_reply(health, status=200 if health["ready"] else 503)


@router.get("/health")
async def health(http: Request) -> Response:
    """200 if both."""
    health = service_of(http).health()
    return json_reply(health, status=200 if health["live"] and health["ready"] else 503)
