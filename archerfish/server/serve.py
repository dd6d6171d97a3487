"""Runs the service until it is stopped or cannot continue."""

import asyncio
import contextlib
import signal
import ssl
from functools import partial
from pathlib import Path
from typing import Any

import uvicorn

from archerfish.config.server import check_server
from archerfish.config.settings import EngineConfig, ServerConfig
from archerfish.console import enable_logging, logger
from archerfish.engine.async_engine import DEFAULT_BUILDER
from archerfish.errors import ConfigError, EngineStopped, UserError
from archerfish.server.app import create_app
from archerfish.server.connection import ServiceConnection
from archerfish.server.keys import check_binding
from archerfish.server.listening import listen
from archerfish.server.service import Service

_TICKS_BETWEEN_CHECKS = 2
"""Of a tenth of a second, between two looks at how long connections take."""
_LAST_GOODBYE = 3
"""Seconds for connections to close after requests have been given their time."""


def serve(engine: EngineConfig, server: ServerConfig, *, builder: str = DEFAULT_BUILDER) -> None:
    """Returns after a stop that was asked for; raises why the service could not go on."""
    enable_logging(as_json=server.log_json)
    check_server(server)
    _check_tls(server)
    with asyncio.Runner(loop_factory=_new_loop) as runner:
        runner.run(_serve(engine, server, builder))


def _check_tls(server: ServerConfig) -> None:
    """Try the certificate before anything is started."""
    certificate, key = server.tls_certificate, server.tls_key
    if certificate is None and key is None:
        return
    if certificate is None or key is None:
        raise ConfigError("--tls-certificate and --tls-key go together: give both")
    for flag, path in (("--tls-certificate", certificate), ("--tls-key", key)):
        try:
            Path(path).read_bytes()
        except OSError as error:
            raise ConfigError(f"cannot read {flag} {path}: {error.strerror}") from error

    def no_password() -> str:
        raise ConfigError(f"--tls-key {key} is encrypted; give it without a password (openssl pkey -in {key})")

    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, no_password)
    except ssl.SSLError as error:
        reason = (error.reason or str(error)).lower().replace("_", " ")
        message = f"--tls-certificate {certificate} and --tls-key {key} do not make a PEM certificate and its key"
        raise ConfigError(f"{message}: {reason}") from error


async def _serve(engine: EngineConfig, server: ServerConfig, builder: str) -> None:
    sockets = listen(server.host, server.port)
    service = Service(engine, server, builder=builder, warms_up=True)
    check_binding(server.host, service.keys, server.allow_anonymous)
    running = _Server(service)
    ended = asyncio.create_task(_watch_engine(service, running))
    try:
        await running.serve(sockets)
    finally:
        ended.cancel()
    if running.reason is not None:
        raise running.reason


async def _watch_engine(service: Service, running: "_Server") -> None:
    ending = await service.engine.wait_ended()
    if ending is not None:
        running.reason = UserError(ending.reason) if ending.can_be_fixed else EngineStopped(ending.reason)
    running.should_exit = True


class _Server(uvicorn.Server):
    """Keeps answering while it drains, so that clients and health checks learn of it."""

    def __init__(self, service: Service) -> None:
        config = service.config
        self._service = service
        self._draining: asyncio.Task[None] | None = None
        self.reason: Exception | None = None
        """Why it could not go on."""
        settings: dict[str, Any] = {
            "loop": "none",
            "http": partial(ServiceConnection, timeout=config.body_timeout),
            "ws": "none",
            "log_config": None,
            "access_log": False,
            "server_header": False,
            "lifespan": "on",
            "timeout_keep_alive": max(1, round(config.keep_alive_timeout)),
            "timeout_graceful_shutdown": _LAST_GOODBYE,
            "ssl_certfile": config.tls_certificate,
            "ssl_keyfile": config.tls_key,
        }
        super().__init__(uvicorn.Config(create_app(service), **settings))

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        for one in self.servers:
            for socket in one.sockets:
                host, port = socket.getsockname()[:2]
                scheme = "https" if self._service.config.tls_certificate else "http"
                shown = f"[{host}]" if ":" in host else host
                logger.info("listening at %s://%s:%d", scheme, shown, port)

    async def on_tick(self, counter: int) -> bool:
        if counter % _TICKS_BETWEEN_CHECKS == 0:
            now = asyncio.get_running_loop().time()
            for connection in tuple(self.server_state.connections):
                assert isinstance(connection, ServiceConnection)
                connection.check(now)
        return await super().on_tick(counter)

    @contextlib.contextmanager
    def capture_signals(self) -> Any:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._stop_requested)
        try:
            yield
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)

    def _stop_requested(self) -> None:
        """The first time, let requests finish; the second, do not."""
        if self._draining is not None:
            self.force_exit = self.should_exit = True
            return
        logger.info("stopping: open requests have %g seconds to finish", self._service.config.shutdown_timeout)
        self._draining = asyncio.create_task(self._drain())

    async def _drain(self) -> None:
        await self._service.drain()
        self.should_exit = True


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop
