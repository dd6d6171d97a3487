"""Receives uploaded files: multipart bodies are read as they arrive, within limits, and written into the store."""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing, contextmanager

from fastapi import Request
from python_multipart import MultipartParser
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import parse_options_header
from starlette.requests import ClientDisconnect

from archerfish.errors import UserError
from archerfish.jobs.files import FileStore, Upload, check_purpose
from archerfish.jobs.records import StoredFile
from archerfish.server.errors import ApiError, as_api_error

_MOST_UPLOADS = 16
"""At a time; so much disk space can be taken by files that are not there yet."""
_MOST_UPLOADS_OF_A_TENANT = 4
_MULTIPART_OVERHEAD = 64 * 1024
"""Bytes of a body besides its file: boundaries, headers and fields."""
_MAX_HEADERS, _MAX_HEADER_BYTES = 8, 4 * 1024
"""Of each part."""
_LONGEST_PURPOSE = 64
_LONGEST_BOUNDARY = 70
_ENCODINGS = ("", "binary", "8bit", "7bit")

# What is wrong with a form is answered; in the log, clients could write what they like.
logging.getLogger("python_multipart").setLevel(logging.CRITICAL)


class Uploads:
    """Limits on the size, rate and number of uploads."""

    def __init__(self, max_file_bytes: int, window: float, min_rate: int) -> None:
        """An upload must bring `min_rate` bytes a second over any `window` seconds."""
        self._max_file_bytes = max_file_bytes
        self._window = window
        self._min_rate = min_rate
        self._open: Counter[str] = Counter()
        """By tenant."""

    async def receive(self, http: Request, files: FileStore, tenant: str) -> StoredFile:
        """Keep the file of a form; or raise what is wrong. Nothing is read after that, so the connection ends."""
        try:
            upload = _MultipartUpload(_boundary(http), lambda: files.begin_upload(tenant=tenant))
            with self._slot(tenant), closing(upload):
                async for piece in self._pieces(http):
                    await asyncio.to_thread(upload.feed, piece)
                return await asyncio.to_thread(upload.finish)
        except (ApiError, UserError) as error:
            refusal = as_api_error(error)
            refusal.headers = {**(refusal.headers or {}), "Connection": "close"}
            raise refusal from error

    @contextmanager
    def _slot(self, tenant: str) -> Iterator[None]:
        if self._open[tenant] >= _MOST_UPLOADS_OF_A_TENANT or self._open.total() >= _MOST_UPLOADS:
            message = (
                f"{self._open.total()} uploads are being read, {self._open[tenant]} of them yours; try again later"
            )
            raise ApiError(429, message, code="too_many_uploads", headers={"Retry-After": "5"})
        self._open[tenant] += 1
        try:
            yield
        finally:
            self._open[tenant] -= 1
            if not self._open[tenant]:
                del self._open[tenant]

    async def _pieces(self, http: Request) -> AsyncIterator[bytes]:
        most = self._max_file_bytes + _MULTIPART_OVERHEAD
        declared = http.headers.get("content-length", "")
        if declared.isdigit() and (len(declared) > 18 or int(declared) > most):
            raise self._too_large()
        num_bytes = num_in_window = 0
        seconds_left = self._window
        loop, stream = asyncio.get_running_loop(), http.stream()
        while True:
            started = loop.time()
            try:
                async with asyncio.timeout(max(0.0, seconds_left)):
                    piece = await anext(stream, None)
            except TimeoutError:
                raise self._too_slow() from None
            except ClientDisconnect:
                raise ApiError(499, "the client closed the connection") from None
            if piece is None:
                return
            # Only the sender's time counts, not that of the disk.
            seconds_left -= loop.time() - started
            num_bytes += len(piece)
            num_in_window += len(piece)
            if num_bytes > most:
                raise self._too_large()
            if num_in_window >= self._window * self._min_rate:
                num_in_window, seconds_left = 0, self._window
            yield piece

    def _too_large(self) -> ApiError:
        message = f"the file exceeds {self._max_file_bytes:,} bytes, the limit; split it into several"
        return ApiError(413, message)

    def _too_slow(self) -> ApiError:
        message = (
            f"an upload must bring {self._min_rate:,} bytes a second over any {self._window:g} seconds; send it "
            "faster, or have --min-upload-rate set lower"
        )
        return ApiError(408, message)


def _boundary(http: Request) -> bytes:
    kind, options = parse_options_header(http.headers.get("content-type"))
    boundary = options.get(b"boundary", b"")
    if kind != b"multipart/form-data" or not 0 < len(boundary) <= _LONGEST_BOUNDARY:
        raise ApiError(
            400,
            "send the file with Content-Type: multipart/form-data and a boundary of 1 to 70 characters",
        )
    return boundary


class _MultipartUpload:
    """The parts of a form as they come: one file and its purpose, in either order."""

    def __init__(self, boundary: bytes, begin: Callable[[], Upload]) -> None:
        self._begin = begin
        self._upload: Upload | None = None
        self._filename: str = ""
        self._purpose: bytearray | None = None
        self._ended = False
        self._name = ""
        self._headers: dict[str, str] = {}
        self._field, self._value = bytearray(), bytearray()
        self._parser = MultipartParser(
            boundary,
            {
                "on_part_begin": self._headers.clear,
                "on_header_field": lambda data, start, end: self._field.extend(data[start:end]),
                "on_header_value": lambda data, start, end: self._value.extend(data[start:end]),
                "on_header_end": self._end_header,
                "on_headers_finished": self._begin_part,
                "on_part_data": self._add,
                "on_part_end": self._end_part,
                "on_end": self._end,
            },
            max_header_count=_MAX_HEADERS,
            max_header_size=_MAX_HEADER_BYTES,
        )

    def feed(self, piece: bytes) -> None:
        """Read on. What belongs to the file is written; what is wrong is raised."""
        try:
            self._parser.write(piece)
        except FormParserError as error:
            raise ApiError(400, f"the body is no valid form: {error}") from error

    def finish(self) -> StoredFile:
        """The body has ended: make its file visible."""
        if not self._ended:
            raise ApiError(400, "the form ends before its closing boundary")
        if self._upload is None:
            raise ApiError(400, "the form has no part named file", param="file")
        if self._purpose is None:
            raise ApiError(400, "the form has no part named purpose", param="purpose")
        return self._upload.finish(self._filename, _text(self._purpose))

    def close(self) -> None:
        """Remove what was written, unless it was finished."""
        if self._upload is not None:
            self._upload.close()

    def _end_header(self) -> None:
        self._headers[_text(self._field).lower()] = self._value.decode("latin-1")
        self._field.clear()
        self._value.clear()

    def _begin_part(self) -> None:
        kind, options = parse_options_header(self._headers.get("content-disposition"))
        self._name = _text(options.get(b"name", b""))
        if kind != b"form-data" or not self._name:
            raise ApiError(400, "a part of the form has no Content-Disposition: form-data with a name")
        if self._headers.get("content-transfer-encoding", "").strip().lower() not in _ENCODINGS:
            raise ApiError(400, "a part of the form has a Content-Transfer-Encoding; send it as it is")
        if (self._name == "file" and self._upload) or (self._name == "purpose" and self._purpose is not None):
            raise ApiError(400, f"the form has two parts named {self._name}", param=self._name)
        if self._name == "file":
            if b"filename" not in options:
                raise ApiError(400, "the part named file has no filename: send it as a file", param="file")
            self._filename = _text(options[b"filename"])
            self._upload = self._begin()
        elif self._name == "purpose":
            self._purpose = bytearray()
        else:
            raise ApiError(400, f"{self._name!r} is not a known part; leave it out", param=self._name)

    def _add(self, data: bytes, start: int, end: int) -> None:
        if self._name == "file" and self._upload is not None:
            self._upload.write(data[start:end])
        elif self._purpose is not None:
            self._purpose += data[start:end]
            if len(self._purpose) > _LONGEST_PURPOSE:
                raise ApiError(400, f"the purpose is longer than {_LONGEST_PURPOSE} bytes", param="purpose")

    def _end_part(self) -> None:
        if self._name == "purpose" and self._purpose is not None:
            check_purpose(_text(self._purpose))  # Before the file is read, if it comes after it.

    def _end(self) -> None:
        self._ended = True


def _text(data: bytes | bytearray) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return data.decode("latin-1")
