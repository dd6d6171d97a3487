"""Which hosts and origins a service without keys answers: a page in a browser must not speak for its user.

Where clients send a key, only those who have one are answered. Without keys anything on this machine may ask, a browser
too: a page of any site can send requests here, and by DNS rebinding (its own name made to mean this address) even read
the replies. Such requests name the site in their Host or Origin header.
"""

import ipaddress
from urllib.parse import urlsplit

from archerfish.errors import ConfigError


class Origins:
    """The names that a service without keys is known by, and the pages that may call it."""

    def __init__(self, host: str, allowed_hosts: str | None = None, cors_origins: str | None = None) -> None:
        """`allowed_hosts` and `cors_origins` are the settings: names with commas between them, * for all."""
        self._hosts = {_name(host), "localhost", *_listed(allowed_hosts)}
        self._origins = {origin.lower() for origin in _listed(cors_origins)}
        for name in _listed(allowed_hosts):
            if "/" in name or " " in name:
                raise ConfigError(f"--allowed-hosts: {name!r} is not a host name; write example.org, or * for all")

    def problem(self, host: str | None, origin: str | None) -> str | None:
        """Why a request with these headers is refused; None if it is not."""
        if host is not None and not self._knows(_name(host)):
            return f"the Host {host!r} is none of this service's names; add it with --allowed-hosts, or use keys"
        if origin is None or "*" in self._origins or origin.lower() in self._origins:
            return None
        if host is not None and urlsplit(origin).netloc.lower() == host.lower():
            return None
        return f"pages of the Origin {origin!r} may not call this service; allow them with --cors-origins"

    def _knows(self, name: str) -> bool:
        # An IP address is not a name that another party could resolve to this machine.
        return name in self._hosts or "*" in self._hosts or _is_address(name)


def _listed(names: str | None) -> list[str]:
    return [] if names is None else [name.strip().lower() for name in names.split(",") if name.strip()]


def _name(host: str) -> str:
    """Without port and brackets."""
    host = host.strip().lower().removesuffix(".")
    if host.startswith("["):
        return host[1:].partition("]")[0]
    name, _, port = host.rpartition(":")
    return name if port.isdigit() and ":" not in name else host


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
