"""The output file of an offline batch: written line by line, usable after an interruption, sorted at the end."""

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from archerfish.errors import ConfigError
from archerfish.jobs.database import naming_full_disk


class _LinePosition(NamedTuple):
    """The position of a record in the file."""

    path: Path
    offset: int


class PartialOutput:
    """Records in OUTPUT.partial during a run, and in OUTPUT once all lines have one.

    Both are read when it is opened: what earlier runs have answered need not be answered again.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._partial = path.with_name(path.name + ".partial")
        self._positions: dict[str, _LinePosition] = {}
        """The last record of each custom_id."""
        self._stream: BinaryIO | None = None

    def load(self, wanted: Mapping[str, str]) -> set[str]:
        """Return the custom_ids that have a good answer. `wanted` maps each custom_id to the id of its record.

        A record with another id answers a line that has changed, or comes from another model: like an error, it does
        not count. A record of a line that is not wanted is refused, because it would be lost.
        """
        good = set()
        _cut_torn_line(self._partial)
        for path in (self._path, self._partial):
            for number, offset, record in _records(path):
                custom_id = record.get("custom_id")
                if not isinstance(custom_id, str) or custom_id not in wanted:
                    raise ConfigError(
                        f"line {number} of {path} answers {custom_id!r}, which is not in the input: "
                        "choose another --output, or remove that file"
                    )
                self._positions[custom_id] = _LinePosition(path, offset)
                if record.get("id") == wanted[custom_id] and _is_answer(record):
                    good.add(custom_id)
                else:
                    good.discard(custom_id)
        return good

    def append(self, custom_id: str, text: str) -> None:
        """Add a record. It survives the end of this process, however it ends."""
        with naming_full_disk(self._path.parent):
            if self._stream is None:
                self._stream = self._partial.open("ab")
            self._positions[custom_id] = _LinePosition(self._partial, self._stream.tell())
            self._stream.write(text.encode("ascii") + b"\n")
            self._stream.flush()

    def finish(self, custom_ids: Iterable[str]) -> None:
        """Write the records in this order to the final file, atomically."""
        self.close()
        ordered = self._path.with_name(self._path.name + ".ordered")
        try:
            with naming_full_disk(self._path.parent), ordered.open("wb") as stream:
                for record in self._in_order(custom_ids):
                    stream.write(record)
                stream.flush()
                os.fsync(stream.fileno())
            ordered.replace(self._path)
        finally:
            ordered.unlink(missing_ok=True)
        self._partial.unlink(missing_ok=True)

    def close(self) -> None:
        if self._stream is not None:
            with suppress(OSError):  # Closing retries what a full disk did not accept.
                self._stream.close()
            self._stream = None

    def _in_order(self, custom_ids: Iterable[str]) -> Iterator[bytes]:
        streams: dict[Path, BinaryIO] = {}
        try:
            for custom_id in custom_ids:
                position = self._positions[custom_id]
                if position.path not in streams:
                    streams[position.path] = position.path.open("rb")
                streams[position.path].seek(position.offset)
                yield streams[position.path].readline().rstrip(b"\r\n") + b"\n"
        finally:
            for stream in streams.values():
                stream.close()


def _is_answer(record: Mapping[str, Any]) -> bool:
    response = record.get("response")
    status = response.get("status_code") if isinstance(response, dict) else None
    return record.get("error") is None and isinstance(status, int) and 200 <= status < 300


def _cut_torn_line(path: Path) -> None:
    """Remove an incomplete line that a killed run has left at the end."""
    if not path.exists():
        return
    with path.open("r+b") as stream:
        end = 0
        for raw in stream:
            end += len(raw) if raw.endswith(b"\n") else 0
        stream.truncate(end)


def _records(path: Path) -> Iterator[tuple[int, int, dict[str, Any]]]:
    """Yield the number, offset and content of each line that is not blank."""
    if not path.exists():
        return
    with path.open("rb") as stream:
        offset = 0
        for number, raw in enumerate(stream, 1):
            if raw.strip():
                yield number, offset, _parse(path, number, raw)
            offset += len(raw)


def _parse(path: Path, number: int, raw: bytes) -> dict[str, Any]:
    try:
        record = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise _not_an_output(path, number, str(error)) from error
    if not isinstance(record, dict):
        raise _not_an_output(path, number, "no JSON object")
    return record


def _not_an_output(path: Path, number: int, reason: str) -> ConfigError:
    return ConfigError(
        f"line {number} of {path} is not the output of a batch ({reason}): choose another --output, or remove that file"
    )
