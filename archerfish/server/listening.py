"""Opens the sockets of a service before anything is loaded, so that a taken address fails at once."""

import socket
from contextlib import suppress

from archerfish.errors import ConfigError

_BACKLOG = 2048


def listen(host: str, port: int) -> list[socket.socket]:
    """Listening sockets, one for each address that the host name has. Port 0 takes a free one, the same for all."""
    sockets: list[socket.socket] = []
    try:
        found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, kind, protocol, _, address in dict.fromkeys(found):
            bound_port = sockets[0].getsockname()[1] if sockets else address[1]
            sockets.append(_listening(family, kind, protocol, (address[0], bound_port, *address[2:])))
    except OSError as error:
        for one in sockets:
            one.close()
        raise ConfigError(_why_not(host, port, error)) from error
    return sockets


def _listening(family: int, kind: int, protocol: int, address: tuple[object, ...]) -> socket.socket:
    opened = socket.socket(family, kind, protocol)
    try:
        opened.setblocking(False)
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            with suppress(AttributeError):
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
