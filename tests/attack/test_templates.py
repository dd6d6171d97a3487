"""Checkpoints whose chat template loops or takes memory: their chats are refused, everything else is served."""

import asyncio
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from archerfish.box import models_in_box
from tests.attack.books import check_books_empty
from tests.server.running import RunningService, running_service

CHAT = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2}
MESSAGE = {**CHAT, "model": "perch"}
TEXT = {"prompt": "Once", "max_tokens": 2}
TEMPLATES = {
    "loops": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "allocates": "{% set n = namespace(t='aaaaaaaa') %}{% for i in range(64) %}{% set n.t = n.t + n.t %}{% endfor %}",
}
LONGEST = 60.0
"""Seconds after which a chat must be refused: its limit is on processor time, of which others may take most."""


@pytest.fixture(scope="module", params=TEMPLATES)
def hostile(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    perch, copy = models_in_box()["perch"], tmp_path_factory.mktemp("perch")
    for file in perch.iterdir():
        if file.is_file() and file.name != "tokenizer_config.json":
            (copy / file.name).symlink_to(file)
    config = json.loads((perch / "tokenizer_config.json").read_text())
    template = {**config, "chat_template": TEMPLATES[request.param]}
    (copy / "tokenizer_config.json").write_text(json.dumps(template))
    options = ("--model", str(copy), "--served-model-name", "perch", "--tool-call-format", "perch")
    paths = os.pathsep.join([str(Path(__file__).parent / "hasty"), os.environ.get("PYTHONPATH", "")])
    with running_service(*options, environment={"PYTHONPATH": paths}) as running:
        yield running


def test_chats_are_refused_in_time_and_others_served_meanwhile(hostile: RunningService) -> None:
    async def attack() -> None:
        async with httpx.AsyncClient(base_url=hostile.url, timeout=LONGEST) as client:
            chats = [
                asyncio.create_task(client.post(path, json=body))
                for path, body in (
                    ("/v1/chat/completions", CHAT),
                    ("/v1/messages", CHAT),
                    ("/v1/responses", {"input": "Hello", "max_output_tokens": 2}),
                    ("/tokenize", {"messages": CHAT["messages"]}),
                )
            ]
            num_served = 0
            while not all(chat.done() for chat in chats):
                assert (await client.post("/v1/completions", json=TEXT)).status_code == 200
                assert (await client.get("/health/live")).status_code == 200
                num_served += 1
            for chat in chats:
                reply = chat.result()
                assert reply.status_code == 400 and "chat template" in reply.text, reply.text
            assert num_served > len(chats)

    asyncio.run(attack())
    check_books_empty(hostile, {})


def test_the_service_stops_while_a_template_runs(hostile: RunningService) -> None:
    async def attack() -> int:
        async with httpx.AsyncClient(base_url=hostile.url, timeout=LONGEST) as client:
            chats = [asyncio.create_task(client.post("/v1/chat/completions", json=CHAT)) for _ in range(3)]
            assert (await client.post("/v1/completions", json=TEXT)).status_code == 200
            started = time.monotonic()
            code = await asyncio.to_thread(hostile.stop, signal.SIGTERM)
            assert time.monotonic() - started < LONGEST
            await asyncio.gather(*chats, return_exceptions=True)
            return code

    assert asyncio.run(attack()) == 0
