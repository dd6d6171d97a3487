"""The client measures a server of known times exactly, and says what went wrong with one that fails."""

import asyncio
from typing import Any

import pytest

from archerfish.bench.serve.client import CHAT, COMPLETIONS, BenchClient, RequestOptions
from archerfish.bench.serve.connections import HttpClient, ServerAddress
from archerfish.bench.serve.datasets.sample import Sample, SampleMessage
from archerfish.bench.serve.load import PlannedLoad, send_load
from archerfish.bench.serve.records import RequestRecord, ServerTimes
from archerfish.errors import ConfigError
from tests.bench.serve.scripted_server import (
    DONE,
    Piece,
    ScriptedServer,
    delta,
    end,
    event,
    scripted_server,
    text,
    usage,
)

SAMPLE = Sample(prompt="Hi", num_prompt_tokens=1, num_output_tokens=4, must_write_all=True, num_shared_tokens=0)


def _client(server: ScriptedServer, **options: Any) -> BenchClient:
    given = {"model": "m", "endpoint": COMPLETIONS, "ignore_eos": True, **options}
    return BenchClient(ServerAddress("127.0.0.1", server.port, False, ""), {}, RequestOptions(**given), server.clock)


def _send(*pieces: Piece, sample: Sample = SAMPLE, count: int = 1, **more: Any) -> tuple[RequestRecord, ScriptedServer]:
    """The last of so many answers to the same script."""
    options = {name: more.pop(name) for name in ("endpoint", "timeout", "extra_body", "temperature") if name in more}

    async def send() -> tuple[RequestRecord, ScriptedServer]:
        async with scripted_server(pieces=pieces, **more) as server:
            client = _client(server, **options)
            for _ in range(count):
                client.start()
                record = await client.send(0, sample, client.body(sample), None)
            client.close()
            return record, server

    return asyncio.run(send())


def test_times_are_those_of_the_script() -> None:
    record, server = _send(
        Piece(0.25, text("a")),
        Piece(0.5, text("b")),
        Piece(1.5, text("c")),
        Piece(1.75, text("d")),
        Piece(2.0, end() + usage(7, 4, cached=3) + DONE),
    )
    assert record.token_times == (0.25, 0.5, 1.5, 1.75)
    assert (record.sent, record.planned, record.first_visible, record.ended) == (0.0, 0.0, 0.25, 2.0)
    assert record.gaps == [0.25, 1.0, 0.25]
    timing = record.timing
    assert (timing.ttft, timing.tpot, timing.total) == (0.25, 0.5, 1.75)
    assert timing.ttft is not None and timing.tpot is not None
    assert timing.total == timing.ttft + timing.tpot * (record.num_output_tokens - 1)
    assert (record.num_prompt_tokens, record.num_cached_tokens, record.num_output_tokens) == (7, 3, 4)
    assert record.counted_by_server and record.succeeded and record.finish_reason == "length"
    assert server.bodies == [
        {
            "model": "m",
            "stream": True,
            "stream_options": {"include_usage": True},
            "prompt": "Hi",
            "max_tokens": 4,
            "ignore_eos": True,
        }
    ]


def test_connections_are_used_again() -> None:
    record, server = _send(Piece(0.1, text("a") + end() + usage(1, 1) + DONE), count=5)
    assert record.token_times == (0.1,)
    assert (len(server.bodies), server.num_connections) == (5, 1)


def test_an_event_may_come_in_pieces() -> None:
    whole = text("a") + text("b") + end() + usage(1, 2) + DONE
    record, _ = _send(*(Piece(place / 8, one) for place, one in enumerate([whole[:5], whole[5:60], whole[60:]])))
    assert record.succeeded and record.num_output_tokens == 2


def test_hidden_reasoning_is_no_visible_text() -> None:
    record, server = _send(
        Piece(0.125, delta(role="assistant", content="")),
        Piece(0.25, delta(reasoning_content="Hmm")),
        Piece(0.5, delta(content="Hello")),
        Piece(0.75, event(choices=[{"delta": {}, "finish_reason": "stop"}]) + usage(5, 2) + DONE),
        endpoint=CHAT,
    )
    assert (record.token_times, record.first_visible) == ((0.25, 0.5), 0.5)
    assert server.bodies[0]["messages"] == [{"role": "user", "content": "Hi"}]
    assert server.bodies[0]["max_completion_tokens"] == 4


def test_our_server_reports_its_own_times() -> None:
    times = {"queue_ms": 1.5, "ttft_ms": 20.0, "tpot_ms": None, "itl_ms": {}, "num_drafts": 0}
    record, _ = _send(Piece(0.1, text("a") + end() + event(choices=[], usage=None, metrics=times) + DONE))
    assert record.server == ServerTimes(queue=0.0015, ttft=0.02, tpot=None)
    assert not record.counted_by_server


def test_a_null_leaves_a_field_out() -> None:
    _, server = _send(
        Piece(0.1, text("a") + end() + DONE), extra_body={"stream_options": None, "top_k": 3}, temperature=0.5
    )
    assert server.bodies[0] == {
        "model": "m",
        "stream": True,
        "prompt": "Hi",
        "max_tokens": 4,
        "ignore_eos": True,
        "temperature": 0.5,
        "top_k": 3,
    }


@pytest.mark.parametrize(
    ("pieces", "more", "says"),
    [
        (['{"error": {"message": "slow  down"}}'], {"status": "429 Too Many Requests"}, "HTTP 429: slow down"),
        (["<h1>no</h1>"], {"status": "502 Bad Gateway"}, "HTTP 502: <h1>no</h1>"),
        ([text("a"), event(error={"message": "the engine died"})], {}, "the engine died"),
        ([text("a")], {"breaks_off": True}, "the connection was closed"),
        ([text("a")], {}, "the stream ended before the answer did"),
        ([end("stop") + usage(1, 0) + DONE], {}, "the answer had no token"),
        (['{"choices": [{"text": "all at once"}]}'], {}, "not streamed"),
        (["data: {broken\n\n"], {}, "not understood"),
    ],
)
def test_what_went_wrong_is_said(pieces: list[str], more: dict[str, Any], says: str) -> None:
    record, _ = _send(*(Piece(0.1 * place, piece) for place, piece in enumerate(pieces, 1)), **more)
    assert record.error is not None and says in record.error
    assert not record.succeeded


def test_a_silent_server_is_waited_for_up_to_the_timeout() -> None:
    async def send() -> RequestRecord:
        async def silent(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
            await reader.read()

        server = await asyncio.start_server(silent, "127.0.0.1", 0)
        async with server:
            origin = ServerAddress("127.0.0.1", server.sockets[0].getsockname()[1], False, "")
            client = BenchClient(origin, {}, RequestOptions(model="m", endpoint=COMPLETIONS, timeout=0.01))
            record = await client.send(0, SAMPLE, client.body(SAMPLE), None)
            client.close()
            return record

    assert asyncio.run(send()).error == "no end within 0.01 seconds"


def test_no_server_at_the_address() -> None:
    client = BenchClient(ServerAddress.parse("http://127.0.0.1:1"), {}, RequestOptions(model="m", endpoint=COMPLETIONS))
    record = asyncio.run(client.send(0, SAMPLE, client.body(SAMPLE), 0.0))
    assert record.error is not None and "cannot be reached" in record.error


def test_chats_go_only_where_chats_are_answered() -> None:
    chat = Sample(
        prompt=(SampleMessage("user", "Hi"),),
        num_prompt_tokens=None,
        num_output_tokens=4,
        must_write_all=False,
        num_shared_tokens=None,
    )
    client = BenchClient(ServerAddress.parse("http://x:1"), {}, RequestOptions(model="m", endpoint=COMPLETIONS))
    with pytest.raises(ConfigError, match="--endpoint /v1/chat/completions"):
        client.body(chat)


def test_addresses() -> None:
    assert ServerAddress.parse("127.0.0.1:8000") == ServerAddress("127.0.0.1", 8000, False, "")
    assert ServerAddress.parse("https://host/base/") == ServerAddress("host", 443, True, "/base")
    assert ServerAddress.parse("http://[::1]:9").url == "http://[::1]:9"
    for url in ("ftp://x", "http://", "http://x:abc", "http://x?y=1"):
        with pytest.raises(ConfigError, match="--url"):
            ServerAddress.parse(url)
    with pytest.raises(ConfigError, match="line break"):
        HttpClient(ServerAddress.parse("http://x"), {"A": "b\r\nc: d"})


@pytest.mark.parametrize("is_closed", [True, False])
def test_no_more_at_once_than_allowed(is_closed: bool) -> None:
    async def run() -> tuple[list[RequestRecord], int]:
        num_open = most_open = 0

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal num_open, most_open
            while True:
                try:
                    await reader.readuntil(b"\r\n\r\n")
                except asyncio.IncompleteReadError:
                    return writer.close()
                num_open += 1
                most_open = max(most_open, num_open)
                await asyncio.sleep(0)
                body = (text("a") + end() + DONE).encode()
                num_open -= 1
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))

        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        async with server:
            origin = ServerAddress("127.0.0.1", server.sockets[0].getsockname()[1], False, "")
            client = BenchClient(origin, {}, RequestOptions(model="m", endpoint=COMPLETIONS))
            load = PlannedLoad(samples=[SAMPLE] * 12, times=[0.0] * 12, is_closed=is_closed, max_concurrency=3)
            heard: list[RequestRecord] = []
            records = await send_load(client, load, heard.append)
            client.close()
            assert sorted(heard, key=lambda record: record.index) == records
            return records, most_open

    records, most_open = asyncio.run(run())
    assert [record.index for record in records] == list(range(12)) and all(record.succeeded for record in records)
    assert 1 <= most_open <= 3
    # In a closed loop a request is planned when there is room for it; else it is late if there is none.
    assert all((record.planned == record.sent) == is_closed for record in records[3:])
