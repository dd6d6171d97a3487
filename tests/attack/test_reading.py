"""Clients that do not read what they asked for: they take nothing from others, and are cut off."""

import json
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.attack.books import check_books_empty
from tests.attack.conftest import by
from tests.attack.memory import resident
from tests.attack.raw import address, is_reset, silent_client
from tests.server.running import RunningService, running_service

TIMEOUT = 2.0
PATIENCE = 60.0
"""Seconds in which a connection that is not read must have been reset."""
NUM_ANSWERS = 16
STREAM: dict[str, Any] = {
    "messages": [{"role": "user", "content": "Once"}],
    "n": NUM_ANSWERS,
    "logprobs": True,
    "top_logprobs": 20,
    "max_tokens": 400,
    "ignore_eos": True,
    "stream": True,
}
LARGE_REPLY = {"prompt": 200_000 * "Once upon ", "return_token_strs": True}
"""To /tokenize: some megabytes, more than the kernel takes from the service at a time."""


@pytest.fixture(scope="module")
def small(key_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    """A service whose queue holds four streams, two of each key."""
    options = ("--key-file", str(key_file), "--data-dir", str(tmp_path_factory.mktemp("jobs")))
    limits = ("--body-timeout", str(TIMEOUT), "--max-queued-requests", str(4 * NUM_ANSWERS), "--max-num-seqs", "32")
    with running_service(*options, *limits) as running:
        yield running
        check_books_empty(running, by("alice"))
        check_books_empty(running, by("bob"))


def request(name: str, target: str, body: dict[str, Any] | None = None, more: str = "") -> bytes:
    content = b"" if body is None else json.dumps(body).encode()
    head = f"{target} HTTP/1.1\r\nHost: localhost\r\nX-Api-Key: {name}-secret\r\nContent-Length: {len(content)}\r\n"
    return f"{head}{more}".encode() + b"Content-Type: application/json\r\n\r\n" + content


def test_streams_that_are_not_read_do_not_fill_the_queue(small: RunningService) -> None:
    before = resident(small.process.pid)
    with ExitStack() as opened:
        ask = request("alice", "POST /v1/chat/completions", STREAM)
        silent = [opened.enter_context(silent_client(small.url, ask)) for _ in range(2)]
        end = time.monotonic() + PATIENCE
        body = {"prompt": "Once", "max_tokens": 2, "n": NUM_ANSWERS}
        while True:  # At first the queue is full, later it is not, although nobody has closed anything.
            reply = httpx.post(f"{small.url}/v1/completions", json=body, headers=by("alice"), timeout=60)
            if reply.status_code == 200:
                break
            assert reply.status_code == 429 and time.monotonic() < end, reply.text
            time.sleep(0.1)
        for connection in silent:
            assert is_reset(connection, PATIENCE)
    assert resident(small.process.pid) - before < 200 << 20
    small.wait_for_line("reset a connection")


@pytest.mark.parametrize("more", ["", "Connection: close\r\n"])
def test_replies_that_are_not_read_are_dropped(small: RunningService, more: str) -> None:
    """Also where the connection is closed after the reply, which then would be offered to the client for ever."""
    ask = request("alice", "POST /tokenize", LARGE_REPLY, more)
    with silent_client(small.url, ask) as connection:
        assert is_reset(connection, PATIENCE)


def test_files_that_are_not_read_are_dropped(small: RunningService) -> None:
    form = {"files": {"file": ("a.jsonl", b"a" * (8 << 20))}, "data": {"purpose": "batch"}}
    uploaded = httpx.post(f"{small.url}/v1/files", headers=by("alice"), timeout=60, **form).json()  # type: ignore[arg-type]
    with silent_client(small.url, request("alice", f"GET /v1/files/{uploaded['id']}/content")) as connection:
        assert is_reset(connection, PATIENCE)


def test_a_client_that_reads_slowly_gets_all_of_it(small: RunningService) -> None:
    whole = httpx.post(f"{small.url}/tokenize", json=LARGE_REPLY, headers=by("alice"), timeout=60).content
    with socket.create_connection(address(small.url)) as connection:
        connection.sendall(request("alice", "POST /tokenize", LARGE_REPLY))
        started, received = time.monotonic(), bytearray()
        while not received.endswith(whole):
            time.sleep(0.1)
            piece = connection.recv(len(whole) // 25)
            assert piece, "it was cut off"
            received += piece
    assert time.monotonic() - started > TIMEOUT
