"""The application: routes, error handlers and middleware."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware

from archerfish import __version__
from archerfish.server.batches import new_runner
from archerfish.server.errors import install_error_handlers
from archerfish.server.middleware import RequestMiddleware
from archerfish.server.requests import describe
from archerfish.server.routes import generation, info, jobs, observe, responses
from archerfish.server.service import Service

_ROUTERS = (
    *(generation.router, responses.router, jobs.files, jobs.batches),
    *(info.router, observe.router),
)


def create_app(service: Service) -> FastAPI:
    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        try:
            await service.start()
            yield
        finally:
            await service.stop()

    app = FastAPI(title="Archerfish", version=__version__, lifespan=lifespan, docs_url=None, redoc_url=None)
    app.state.service = service
    app.state.limits = service.bodies
    app.openapi = describe(app)  # type: ignore[method-assign]
    for router in _ROUTERS:
        app.include_router(router)
    if service.jobs is not None:
        service.runner = new_runner(service.jobs, service)
    install_error_handlers(app)
    app.add_middleware(RequestMiddleware, service=service)
    if service.config.cors_origins is not None:
        origins = [origin.strip() for origin in service.config.cors_origins.split(",")]
        app.add_middleware(CORSMiddleware, allow_origins=origins, allow_methods=["*"], allow_headers=["*"])
    return app
