"""Sockets are opened before a service loads anything, and what is wrong with an address is one line."""

import socket
import subprocess
import sys

import pytest

from archerfish.errors import ConfigError
from archerfish.server.serve import listen


def close(sockets: list[socket.socket]) -> None:
    for one in sockets:
        one.close()


def test_a_free_port_is_the_same_for_all_addresses_of_a_name() -> None:
    sockets = listen("localhost", 0)
    try:
        assert len({one.getsockname()[1] for one in sockets}) == 1
        for one in sockets:
            with socket.create_connection(one.getsockname()[:2], timeout=5):
                pass
    finally:
        close(sockets)


def test_a_port_in_use_is_named() -> None:
    [taken] = listen("127.0.0.1", 0)
    port = taken.getsockname()[1]
    try:
        with pytest.raises(ConfigError, match=f"127.0.0.1 port {port}: address already in use; use another --port"):
            listen("127.0.0.1", port)
    finally:
        taken.close()
    close(listen("127.0.0.1", port))


def test_a_host_that_is_not_ours_is_named() -> None:
    with pytest.raises(ConfigError, match=r"no-such-host.invalid port 8000: .* check --host"):
        listen("no-such-host.invalid", 8000)
    with pytest.raises(ConfigError, match=r"192.0.2.1 port 0: cannot assign requested address"):
        listen("192.0.2.1", 0)


def test_serve_says_in_one_line_that_its_port_is_in_use() -> None:
    [taken] = listen("127.0.0.1", 0)
    with taken:
        command = [sys.executable, "-c", "from archerfish.cli.main import main; main()"]
        options = ["serve", "--port", str(taken.getsockname()[1])]
        ended = subprocess.run([*command, *options], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 2
    assert ended.stderr.count("\n") == 1 and "address already in use" in ended.stderr
