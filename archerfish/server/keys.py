"""Who may use the service: keys with names, from a setting or from a file that may change. Counts nothing.

A key file is TOML:

    [[key]]
    name = "alice"
    key = "sk-..."               # or, so that the file holds no secret: sha256 = "64 hexadecimal digits"
    requests_per_minute = 60     # optional
    tokens_per_minute = 100000   # optional
    batch_requests_per_minute = 600     # optional: of lines of batches, which take nothing of the online rates;
    batch_tokens_per_minute = 1000000   # without these the same numbers as online. Lines wait for their turn
    min_priority = -5            # optional: the lowest `priority` its requests may name, and lower goes first; else 0
    cache_group = "team"         # optional: keys of one group share cached prefixes; else each key has its own
    admin = true                 # optional: /metrics names all keys to this one; else to each only itself
"""

import hashlib
import hmac
import ipaddress
import os
import stat
import time
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from archerfish.console import logger
from archerfish.errors import ConfigError

Clock = Callable[[], float]

DEFAULT_NAME = "default"
"""What the key given by --api-key is called; further ones are default-2, default-3, ... Each is a tenant of its own."""

_SECONDS_BETWEEN_LOOKS = 1.0
_DEFAULT_MIN_PRIORITY = 0
"""Of keys in a file: they may make way for others, not go before them."""
_RATES = ("requests_per_minute", "tokens_per_minute", "batch_requests_per_minute", "batch_tokens_per_minute")
_FIELDS = ("name", "key", "sha256", *_RATES, "min_priority", "cache_group", "admin")


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """A caller and its limits. Contains no secret."""

    name: str
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    batch_requests_per_minute: int | None = None
    """Of lines of batches; None for as many as online."""
    batch_tokens_per_minute: int | None = None
    is_batch: bool = False
    """Whether it asks for the lines of its batches: their rates are counted by themselves."""
    min_priority: int | None = None
    """Of its requests; None if they may name any. Lower goes first."""
    cache_group: str | None = None
    """Name of the group of keys that share cached prefixes; None for a key that shares none."""
    admin: bool = False
    """Whether it may see what other keys did."""

    def cache_salt(self, given: str) -> str:
        """The salt of a request of this key that names a salt itself: only its own group can name the same."""
        if not self.name:
            return given  # There are no keys.
        # Names and groups are printable, so what follows the first NUL is the client's own.
        group = f"key {self.name}" if self.cache_group is None else f"group {self.cache_group}"
        return f"{group}\0{given}"


class _Entry(NamedTuple):
    digest: bytes
    """SHA-256 of the secret."""
    key: Key


class _Version(NamedTuple):
    """Properties that differ between two versions of a file."""

    modified: int
    size: int
    inode: int


class Keys:
    """Whether there are keys; without any, requests need none."""

    def __init__(self, fixed: list[_Entry], file: "_KeyFile | None" = None) -> None:
        """Use `load`."""
        self._fixed = fixed
        self._file = file

    @classmethod
    def load(cls, api_keys: Sequence[str], key_file: Path | None, clock: Clock = time.monotonic) -> "Keys":
        """Keys from both places. What is wrong with them is a ConfigError that names it, but never a secret."""
        fixed: list[_Entry] = []
        for number, secret in enumerate(dict.fromkeys(api_keys), start=1):
            name = DEFAULT_NAME if number == 1 else f"{DEFAULT_NAME}-{number}"
            fixed.append(_Entry(_digest_of_secret(secret, "--api-key"), Key(name=name)))
        return cls(fixed, None if key_file is None else _KeyFile(key_file, fixed, clock))

    def __bool__(self) -> bool:
        return bool(self._fixed) or self._file is not None

    @property
    def are_several(self) -> bool:
        return len(self._entries()) > 1

    def find(self, authorization: str | None = None, x_api_key: str | None = None) -> Key | None:
        """The key that a client shows, in either of the two headers. Reads the file again if it has changed."""
        shown = [secret for secret in (_bearer(authorization), (x_api_key or "").strip()) if secret]
        entries = self._entries()
        keys = [_find(secret, entries) for secret in shown]
        return next((key for key in keys if key is not None), None)

    def owner(self, name: str) -> Key:
        """Return the key that owns an accepted batch, with the rates of its lines.

        A key that is gone by now may do what one may by default.
        """
        default = Key(name=name, min_priority=_DEFAULT_MIN_PRIORITY if self else None)
        key = next((entry.key for entry in self._entries() if entry.key.name == name), default)
        return replace(
            key,
            requests_per_minute=key.batch_requests_per_minute or key.requests_per_minute,
            tokens_per_minute=key.batch_tokens_per_minute or key.tokens_per_minute,
            is_batch=True,
        )

    def _entries(self) -> list[_Entry]:
        return self._fixed if self._file is None else self._fixed + self._file.entries()


class _KeyFile:
    """The keys of a file, as of its last version that could be read."""

    def __init__(self, path: Path, fixed: list[_Entry], clock: Clock) -> None:
        self._path = path
        self._fixed = fixed
        self._clock = clock
        self._looked_at = clock()
        self._version: _Version | None = None
        self._entries = self._read()

    def entries(self) -> list[_Entry]:
        now = self._clock()
        if now - self._looked_at >= _SECONDS_BETWEEN_LOOKS:
            self._looked_at = now
            version = self._current_version()
            if version != self._version:
                self._version = version  # Also of one that cannot be read: it is logged once.
                self._read_again()
        return self._entries

    def _current_version(self) -> _Version | None:
        """None if there is nothing to be seen."""
        try:
            return _version(self._path.stat())
        except OSError:
            return None

    def _read_again(self) -> None:
        try:
            self._entries = self._read()
        except ConfigError as error:
            logger.warning("%s; the %d keys read before stay in force", error, len(self._entries))
        else:
            logger.info("read %d keys from %s, which has changed", len(self._entries), self._path)

    def _read(self) -> list[_Entry]:
        try:
            with self._path.open("rb") as file:
                # Of the very file that is read: another may take its place at any moment.
                status = os.fstat(file.fileno())
                self._version = _version(status)
                content = file.read()
        except OSError as error:
            raise ConfigError(f"cannot read the key file {self._path}: {error.strerror}") from error
        if os.name == "posix" and status.st_mode & stat.S_IROTH:
            logger.warning("everyone on this machine can read the key file %s: chmod o-r it", self._path)
        return _parse(self._path, content, self._fixed)


def _version(status: os.stat_result) -> _Version:
    return _Version(status.st_mtime_ns, status.st_size, status.st_ino)


# -- what a client shows ----------------------------------------------------------------------------------------------


def _bearer(authorization: str | None) -> str:
    scheme, _, secret = (authorization or "").strip().partition(" ")
    return secret.strip() if scheme.lower() == "bearer" else ""


def _find(secret: str, entries: list[_Entry]) -> Key | None:
    """Compares with every key, each in constant time: how long it takes tells nothing of any of them."""
    digest = hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()
    key = None
    for entry in entries:
        if hmac.compare_digest(digest, entry.digest):
            key = entry.key
    return key


# -- what a file says -------------------------------------------------------------------------------------------------


def _parse(path: Path, content: bytes, fixed: list[_Entry]) -> list[_Entry]:
    try:
        table = tomllib.loads(content.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise ConfigError(f"the key file {path} is not UTF-8 text (byte {error.start})") from error
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"the key file {path} is not valid TOML: {error}") from error
    if unknown := sorted(table.keys() - {"key"}):
        raise ConfigError(f"the key file {path} has {unknown[0]!r}, which is unknown: it contains [[key]] tables only")
    tables = table.get("key")
    if not tables or not isinstance(tables, list) or not all(isinstance(key_table, dict) for key_table in tables):
        raise ConfigError(f"the key file {path} names no keys: begin each of them with a line [[key]]")
    entries = []
    names = {entry.key.name: entry.digest for entry in fixed}
    owners = {digest: name for name, digest in names.items()}
    for number, fields in enumerate(tables, start=1):
        entry = _entry(fields, f"{path}, key {number}")
        name = entry.key.name
        if name in names:
            raise ConfigError(f"{path}, key {number}: the name {name!r} is already taken")
        if entry.digest in owners:
            raise ConfigError(f"{path}, key {number}: {owners[entry.digest]!r} and {name!r} have the same key")
        names[name], owners[entry.digest] = entry.digest, name
        entries.append(entry)
    return entries


def _entry(fields: Mapping[str, Any], where: str) -> _Entry:
    if unknown := sorted(fields.keys() - set(_FIELDS)):
        raise ConfigError(f"{where}: {unknown[0]!r} is not a field; fields are {', '.join(_FIELDS)}")
    name = fields.get("name")
    if not isinstance(name, str) or not name or not name.isprintable():
        raise ConfigError(f"{where}: it needs a name of printable characters")
    where = f"{where} ({name!r})"
    if ("key" in fields) == ("sha256" in fields):
        raise ConfigError(f"{where}: give either key or sha256")
    digest = _digest_of_secret(fields["key"], where) if "key" in fields else _digest(fields["sha256"], where)
    limits: dict[str, Any] = {field: _limit(fields, field, where) for field in _RATES}
    group, admin = fields.get("cache_group"), fields.get("admin", False)
    if group is not None and (not isinstance(group, str) or not group or not group.isprintable()):
        raise ConfigError(f"{where}: cache_group = {group!r} must be a name of printable characters")
    if not isinstance(admin, bool):
        raise ConfigError(f"{where}: admin = {admin!r} must be true or false")
    min_priority = _min_priority(fields, where)
    return _Entry(digest, Key(name=name, **limits, min_priority=min_priority, cache_group=group, admin=admin))


def _digest_of_secret(secret: object, where: str) -> bytes:
    if not isinstance(secret, str) or not secret:
        raise ConfigError(f"{where}: the key must be a non-empty string")
    if not secret.isascii() or not secret.isprintable() or " " in secret:
        raise ConfigError(
            f"{where}: the key cannot be sent in a header; use letters, digits and punctuation, no spaces"
        )
    return hashlib.sha256(secret.encode("ascii")).digest()


def _digest(written: object, where: str) -> bytes:
    try:
        digest = bytes.fromhex(written) if isinstance(written, str) else b""
    except ValueError:
        digest = b""
    if len(digest) != hashlib.sha256().digest_size:
        raise ConfigError(f"{where}: sha256 must be 64 hexadecimal digits, as `printf %s KEY | sha256sum` prints them")
    if digest == hashlib.sha256(b"").digest():
        raise ConfigError(f"{where}: sha256 is that of an empty key")
    return digest


def _limit(fields: Mapping[str, Any], field: str, where: str) -> int | None:
    value = fields.get(field)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        raise ConfigError(
            f"{where}: {field} = {value!r} must be a whole number of at least 1; without it there is no limit"
        )
    return value


def _min_priority(fields: Mapping[str, Any], where: str) -> int:
    value = fields.get("min_priority", _DEFAULT_MIN_PRIORITY)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(f"{where}: min_priority = {value!r} must be a whole number; lower goes first")
    return value


# -- who may be let in without one ------------------------------------------------------------------------------------


def check_binding(host: str, keys: Keys, allow_anonymous: bool) -> None:
    """Refuse to serve other machines without keys, unless that was asked for."""
    if keys or allow_anonymous or _is_loopback(host):
        return
    raise ConfigError(
        f"listening on {host or 'every address'!r} would serve anyone who can reach this machine: "
        "set --api-key or --key-file, listen on 127.0.0.1, or allow it with --allow-anonymous"
    )


def _is_loopback(host: str) -> bool:
    """Whether only this machine can reach it. A name other than localhost may come to mean anything."""
    if host.lower() == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback
