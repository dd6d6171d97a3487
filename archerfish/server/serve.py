"""Runs the service until it is stopped or cannot continue."""

import asyncio
import contextlib
import socket
import ssl
from pathlib import Path

from archerfish.config.server import check_server
from archerfish.config.settings import EngineConfig, ServerConfig
from archerfish.console import enable_logging
from archerfish.engine.async_engine import DEFAULT_BUILDER
from archerfish.errors import ConfigError, EngineStopped, UserError
from archerfish.server.app import create_app
from archerfish.server.http_server import HttpServer
from archerfish.server.keys import check_binding
from archerfish.server.service import Service

_BACKLOG = 2048


def listen(host: str, port: int) -> list[socket.socket]:
    """Listening sockets, one for each address that the host name has. Port 0 takes a free one, the same for all."""
    sockets: list[socket.socket] = []
    try:
        addresses = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, kind, protocol, _, address in dict.fromkeys(addresses):
            bound_port = sockets[0].getsockname()[1] if sockets else address[1]
            sockets.append(_listening(family, kind, protocol, (address[0], bound_port, *address[2:])))
    except OSError as error:
        for opened in sockets:
            opened.close()
        raise ConfigError(_why_not(host, port, error)) from error
    return sockets


def _listening(family: int, kind: int, protocol: int, address: tuple[object, ...]) -> socket.socket:
    opened = socket.socket(family, kind, protocol)
    try:
        opened.setblocking(False)
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            with contextlib.suppress(AttributeError):
                opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        opened.bind(address)
        opened.listen(_BACKLOG)
    except BaseException:
        opened.close()
        raise
    return opened


def _why_not(host: str, port: int, error: OSError) -> str:
    where = f"cannot listen on {host or 'every address'} port {port}"
    if isinstance(error, socket.gaierror):
        return f"{where}: {host!r} is not an address or name of this machine; check --host"
    if isinstance(error, PermissionError):
        return f"{where}: ports below 1024 need permission; use --port 8000, or another above 1023"
    return f"{where}: {(error.strerror or str(error)).lower()}; use another --port, or --port 0 for a free one"


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
    running = HttpServer(create_app(service), service)
    ended = asyncio.create_task(_watch_engine(service, running))
    try:
        await running.serve(sockets)
    finally:
        ended.cancel()
    if running.reason is not None:
        raise running.reason


async def _watch_engine(service: Service, running: HttpServer) -> None:
    ending = await service.engine.wait_ended()
    if ending is not None:
        running.reason = UserError(ending.reason) if ending.can_be_fixed else EngineStopped(ending.reason)
    running.should_exit = True


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop
