"""Uploads that are too large, too slow, torn or no forms: refused at once, by name, and nothing of them stays."""

import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import openai
import pytest

from tests.attack.conftest import by
from tests.server.running import RunningService, running_service
from tests.server.scripted_process import COMMAND

MOST = 1_000_000
BOUNDARY = "frontier"
WINDOW = 1.0
PURPOSE = b'Content-Disposition: form-data; name="purpose"\r\n\r\nbatch'
FILE = b'Content-Disposition: form-data; name="file"; filename="in.jsonl"\r\nContent-Type: text/plain\r\n\r\n'


class Uploading(NamedTuple):
    service: RunningService
    directory: Path

    @property
    def drafts(self) -> list[Path]:
        return list((self.directory / "drafts").iterdir())

    def wait_without_drafts(self) -> None:
        end = time.monotonic() + 10
        while self.drafts:
            assert time.monotonic() < end, "a draft was left behind"
            time.sleep(0.01)


@pytest.fixture(scope="module")
def uploading(key_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Uploading]:
    """Files need no model."""
    directory = tmp_path_factory.mktemp("uploads") / "data"
    options = ("--key-file", str(key_file), "--data-dir", str(directory), "--max-file-bytes", str(MOST))
    limits = ("--body-timeout", str(WINDOW), "--min-upload-rate", "1000", "--max-files", "60")
    with running_service(*options, *limits, wait=False, command=COMMAND) as service:
        yield Uploading(service, directory)


class Connection:
    """A client that sends what it likes."""

    def __init__(self, uploading: Uploading) -> None:
        host, _, port = uploading.service.url.removeprefix("http://").partition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=20)

    def __enter__(self) -> "Connection":
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def begin(self, length: int | None, *, key: str = "alice", content_type: str | None = None) -> None:
        kind = f"multipart/form-data; boundary={BOUNDARY}" if content_type is None else content_type
        headers = [
            *("POST /v1/files HTTP/1.1", "Host: 127.0.0.1", f"Authorization: Bearer {key}-secret"),
            *([f"Content-Type: {kind}"] if kind else []),
            "Transfer-Encoding: chunked" if length is None else f"Content-Length: {length}",
        ]
        self.send("\r\n".join([*headers, "", ""]).encode())

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def send_chunk(self, data: bytes) -> bool:
        """Whether the service still listens."""
        try:
            self.send(b"%x\r\n%b\r\n" % (len(data), data))
        except (BrokenPipeError, ConnectionResetError):
            return False
        return True

    def stored(self) -> dict[str, Any]:
        """The file that was taken in."""
        received = b""
        while not received.endswith(b"}"):
            received += self._socket.recv(65536)
        head, _, body = received.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), received
        file: dict[str, Any] = json.loads(body)
        return file

    def answer(self) -> tuple[int, dict[str, str]]:
        """Status and error; the connection has been closed after it."""
        received = b""
        try:
            while piece := self._socket.recv(65536):
                received += piece
        except ConnectionResetError:
            pass  # What was sent and not read was thrown away; the answer came before.
        head, _, body = received.partition(b"\r\n\r\n")
        status = int(head.split()[1])
        assert status < 400 or b"connection: close" in head.lower(), head
        return status, json.loads(body).get("error", {})


def form(*parts: bytes) -> bytes:
    return b"".join(b"--%b\r\n%b\r\n" % (BOUNDARY.encode(), part) for part in parts) + b"--%b--\r\n" % BOUNDARY.encode()


def send(uploading: Uploading, body: bytes, content_type: str | None = None) -> tuple[int, dict[str, str]]:
    """The answer to one body sent at once."""
    with Connection(uploading) as connection:
        connection.begin(len(body), content_type=content_type)
        connection.send(body)
        return connection.answer()


# -- what is taken in -------------------------------------------------------------------------------------------------


def client_of(uploading: Uploading, name: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{uploading.service.url}/v1", api_key=f"{name}-secret", max_retries=0)


@pytest.mark.parametrize("size", [0, 1, 65_536, MOST])
def test_what_comes_is_what_was_sent(uploading: Uploading, size: int) -> None:
    content = (b"\r\n--front\r\n--frontier-\r\n" * (size // 20 + 1))[:size]
    client = client_of(uploading, "alice")
    file = client.files.create(file=("ünï.jsonl", content), purpose="batch")
    assert (file.bytes, file.filename, file.purpose) == (size, "ünï.jsonl", "batch")
    assert client.files.content(file.id).content == content
    client.files.delete(file.id)


@pytest.mark.parametrize("step", [1, 2, 7, 50])
@pytest.mark.parametrize("parts", [(PURPOSE, FILE + b"content"), (FILE + b"content", PURPOSE)])
def test_either_part_may_come_first_in_pieces_of_any_size(
    uploading: Uploading, parts: tuple[bytes, ...], step: int
) -> None:
    body = form(*parts)
    with Connection(uploading) as connection:
        connection.begin(None)
        for start in range(0, len(body), step):
            assert connection.send_chunk(body[start : start + step])
        connection.send(b"0\r\n\r\n")
        file = connection.stored()
    assert (file["bytes"], file["filename"]) == (7, "in.jsonl")
    client_of(uploading, "alice").files.delete(file["id"])


# -- too much ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [MOST + 100_000, 400_000_000, 10**18])
def test_a_length_that_is_too_large_is_refused_unread(uploading: Uploading, length: int) -> None:
    with Connection(uploading) as connection:
        connection.begin(length)
        status, error = connection.answer()
    assert status == 413 and f"{MOST:,} bytes" in error["message"]


@pytest.mark.parametrize("declared", [False, True])
def test_reading_stops_where_the_file_becomes_too_large(uploading: Uploading, declared: bool) -> None:
    before = b"--%b\r\n%b\r\n--%b\r\n%b" % (BOUNDARY.encode(), PURPOSE, BOUNDARY.encode(), FILE)
    num_sent = 0
    with Connection(uploading) as connection:
        connection.begin(MOST + 60_000 if declared else None)
        connection.send(before) if declared else connection.send_chunk(before)
        if declared:
            connection.send(b"x" * (MOST + 1))
        else:
            while num_sent < 400_000_000 and connection.send_chunk(b"x" * 100_000):
                num_sent += 100_000
        status, error = connection.answer()
    assert (status, error["message"].startswith(f"the file exceeds {MOST:,} bytes")) == (413, True)
    assert num_sent < 40_000_000, "buffers of the system take some of it"
    assert uploading.drafts == []


@pytest.mark.parametrize("filler", [b"\r\n" * 1000, b"--frontier--\r\n" + b"x" * 1000])
def test_what_is_around_a_file_is_limited_too(uploading: Uploading, filler: bytes) -> None:
    with Connection(uploading) as connection:
        connection.begin(None)
        for _ in range(1_000_000):
            if not connection.send_chunk(filler):
                break
        assert connection.answer()[0] in (400, 413)


def test_uploads_at_a_time_are_limited_for_each_key(uploading: Uploading) -> None:
    before = b"--%b\r\n%b\r\n--%b\r\n%b" % (BOUNDARY.encode(), PURPOSE, BOUNDARY.encode(), FILE)
    rest = b"y" * 10 + b"\r\n--%b--\r\n" % BOUNDARY.encode()
    connections = [Connection(uploading) for _ in range(4)]
    for connection in connections:
        connection.begin(len(before) + len(rest))
        connection.send(before)
    end = time.monotonic() + 10
    while len(uploading.drafts) < 4:
        assert time.monotonic() < end
    with Connection(uploading) as fifth:
        fifth.begin(len(before) + len(rest))
        status, error = fifth.answer()
    assert (status, error["code"]) == (429, "too_many_uploads")
    assert client_of(uploading, "bob").files.create(file=("b", b"x"), purpose="batch").bytes == 1
    for connection in connections:
        connection.send(rest)
        assert connection.stored()["bytes"] == 10
        connection._socket.close()
    assert client_of(uploading, "alice").files.create(file=("a", b"x"), purpose="batch").bytes == 1
    assert uploading.drafts == []


def test_a_key_keeps_only_so_many_files(uploading: Uploading) -> None:
    client = client_of(uploading, "bob")
    kept = [file.id for file in client.files.list()]
    while len(kept) < 60:
        kept.append(client.files.create(file=("b", b"x"), purpose="batch").id)
    with pytest.raises(openai.InternalServerError, match="--max-files 60") as refusal:
        client.files.create(file=("b", b"x"), purpose="batch")
    assert (refusal.value.status_code, refusal.value.code) == (507, "quota_exceeded")
    client.files.delete(kept[0])
    client.files.create(file=("b", b"x"), purpose="batch")


# -- too slow, or gone ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("head_start", [0, 50_000])
def test_an_upload_that_trickles_is_ended(uploading: Uploading, head_start: int) -> None:
    """However much came quickly before."""
    with Connection(uploading) as connection:
        connection.begin(100_000)
        connection.send(b"--%b\r\n%b\r\n--%b\r\n%b" % (BOUNDARY.encode(), PURPOSE, BOUNDARY.encode(), FILE))
        connection.send(b"x" * head_start)
        connection._socket.settimeout(0.05)
        for _ in range(400):
            try:
                connection.send(b"x")
                if connection._socket.recv(1, socket.MSG_PEEK):
                    break
            except TimeoutError:
                continue
        connection._socket.settimeout(20)
        status, error = connection.answer()
    assert status == 408 and "--min-upload-rate" in error["message"]
    assert uploading.drafts == []


def test_a_slow_line_that_keeps_the_rate_is_let_through(uploading: Uploading) -> None:
    body = form(PURPOSE, FILE + b"x" * 5000)
    started = time.monotonic()
    with Connection(uploading) as connection:
        connection.begin(len(body))
        for start in range(0, len(body), 500):
            connection.send(body[start : start + 500])
            time.sleep(0.15)  # About three times the least rate.
        assert connection.stored()["bytes"] == 5000
    assert time.monotonic() - started > 1.4 * WINDOW, "it has outlasted the window"


@pytest.mark.parametrize("abruptly", [False, True])
def test_a_client_that_leaves_half_way_leaves_no_draft(uploading: Uploading, abruptly: bool) -> None:
    with Connection(uploading) as connection:
        connection.begin(500_000)
        connection.send(b"--%b\r\n%b" % (BOUNDARY.encode(), FILE) + b"x" * 100_000)
        end = time.monotonic() + 10
        while not uploading.drafts:
            assert time.monotonic() < end
        if abruptly:
            connection._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    uploading.wait_without_drafts()


def test_a_body_that_nobody_asked_for_is_not_read(uploading: Uploading) -> None:
    """Without a key, and where there is no such path: the answer comes before the body, and is the end."""
    with Connection(uploading) as connection:
        connection.begin(400_000_000, key="nobody")
        answered = connection._socket.recv(65536)
        assert answered.startswith(b"HTTP/1.1 401")
        with pytest.raises(OSError):
            for _ in range(400):
                connection.send(b"x" * 1_000_000)


# -- no forms ---------------------------------------------------------------------------------------------------------

HUGE = b'Content-Disposition: form-data; name="' + b"x" * 10_000 + b'"\r\n\r\n'
MANY = b"".join(b"X-%d: y\r\n" % number for number in range(20)) + PURPOSE


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (form(PURPOSE), "no part named file"),
        (form(FILE + b"x"), "no part named purpose"),
        (form(), "no part named file"),
        (b"", "ends before its closing boundary"),
        (form(PURPOSE, FILE + b"x")[:-20], "ends before its closing boundary"),
        (b"no form at all", "no valid form"),
        (b"--other\r\n" + FILE, "no valid form"),
        (form(PURPOSE, PURPOSE, FILE + b"x"), "two parts named purpose"),
        (form(PURPOSE, FILE + b"x", FILE + b"y"), "two parts named file"),
        (form(PURPOSE, b'Content-Disposition: form-data; name="expires_after"\r\n\r\n1'), "'expires_after' is not"),
        (form(*[b'Content-Disposition: form-data; name="x"\r\n\r\n1'] * 10_000), "'x' is not"),
        (form(PURPOSE, b'Content-Disposition: form-data; name="file"\r\n\r\ntext'), "no filename"),
        (form(PURPOSE, b"X: y\r\n\r\ntext"), "no Content-Disposition"),
        (form(PURPOSE, b'Content-Disposition: attachment; name="file"\r\n\r\ntext'), "no Content-Disposition"),
        (form(PURPOSE, b"Content-Transfer-Encoding: base64\r\n" + FILE + b"eA=="), "Content-Transfer-Encoding"),
        (form(PURPOSE.replace(b"batch", b"fine-tune"), FILE + b"x"), "purpose = 'fine-tune'"),
        (form(FILE + b"x", PURPOSE.replace(b"batch", b"\xff")), "purpose = "),
        (form(PURPOSE.replace(b"batch", b"b" * 100_000), FILE + b"x"), "longer than 64 bytes"),
        (form(HUGE), "header size"),
        (form(MANY), "header count"),
        (form(b"bad header\x00: x\r\n\r\n"), "no valid form"),
    ],
)
def test_what_is_wrong_with_a_form_is_told(uploading: Uploading, body: bytes, says: str) -> None:
    status, error = send(uploading, body)
    assert (status, error["type"]) == (400, "invalid_request_error")
    assert says in error["message"]
    assert uploading.drafts == []


@pytest.mark.parametrize(
    "content_type",
    [
        "",
        "application/json",
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data",
        "multipart/form-data; boundary=",
        f"multipart/mixed; boundary={BOUNDARY}",
        f"multipart/form-data; boundary={'x' * 300}",
    ],
)
def test_other_content_types_are_refused(uploading: Uploading, content_type: str) -> None:
    status, error = send(uploading, form(PURPOSE, FILE + b"x"), content_type)
    assert status == 400 and "multipart/form-data" in error["message"]


def test_nothing_of_all_that_is_a_mistake_of_ours(uploading: Uploading) -> None:
    assert httpx.get(f"{uploading.service.url}/v1/files", headers=by("alice")).status_code == 200
    assert not [line for line in uploading.service.lines if "Traceback" in line or " 500 " in line]
    assert not [line for line in uploading.service.lines if "header" in line], "what clients write is not logged"
