"""Preprocessing workers: bodies are read as in the service itself, and a hostile one ends at most its worker."""

import asyncio
import json
import os
import shutil
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from archerfish.api.endpoint_call import EndpointCall
from archerfish.api.errors import ErrorReply
from archerfish.api.limits import JsonLimits
from archerfish.box import models_in_box
from archerfish.engine.input_processor import EngineInputs
from archerfish.engine.wire import EngineFacts
from archerfish.server.preprocessing import pool as pool_module
from archerfish.server.preprocessing.pool import Preprocessing
from archerfish.server.preprocessing.protocol import ModelSpec, PreprocessingJob, load_model

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
LIMITS = JsonLimits(10_000)
HELLO = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 3}

Story = Callable[[Preprocessing], Awaitable[None]]


def job(endpoint: str, body: dict[str, Any]) -> PreprocessingJob:
    return PreprocessingJob(endpoint, json.dumps(body).encode())


def spec_of(directory: Path) -> ModelSpec:
    facts = EngineFacts(
        model="perch",
        family="llama",
        tokenizer_directory=str(directory),
        vocab_size=8192,
        hidden_size=64,
        embedding_sizes=(),
        max_model_len=1024,
        max_positions=1024,
        max_num_seqs=8,
        block_size=16,
        num_blocks=256,
        dtype="float32",
        device="cpu",
        speculation_methods=("off", "auto"),
        recommended={},
    )
    return ModelSpec(facts, ("perch",), None, LIMITS)


@asynccontextmanager
async def preprocessing(directory: Path) -> AsyncIterator[Preprocessing]:
    spec = spec_of(directory)
    workers = Preprocessing(spec, load_model(spec, time.monotonic))
    try:
        yield workers
    finally:
        await workers.close()


def play(story: Story, directory: Path | None = None) -> None:
    async def run() -> None:
        async with preprocessing(directory or models_in_box()["perch"]) as workers:
            await story(workers)

    asyncio.run(run())


@pytest.fixture
def hostile(tmp_path: Path) -> Callable[[str], Path]:
    """A tokenizer with a chat template of one's own."""

    def write(template: str) -> Path:
        shutil.copy(models_in_box()["perch"] / "tokenizer.json", tmp_path)
        shutil.copy(models_in_box()["perch"] / "tokenizer_config.json", tmp_path)
        (tmp_path / "chat_template.jinja").write_text(template)
        return tmp_path

    return write


BODIES: list[tuple[str, dict[str, Any]]] = [
    (CHAT, HELLO),
    (COMPLETIONS, {"prompt": ["Once", "upon"], "echo": True}),
    (COMPLETIONS, {"prompt": [[1, 2, 3]], "logit_bias": {"5": -1}}),
    ("/v1/embeddings", {"input": "Hello"}),
    ("/v1/responses", {"input": "Hello", "instructions": "Be brief."}),
    ("/v1/messages", {**HELLO, "system": "Be brief."}),
    ("/tokenize", {"prompt": "Once upon a time", "return_token_strs": True}),
    (CHAT, {"messages": []}),
    (COMPLETIONS, {"prompt": "a", "colour": "blue"}),
]


@pytest.fixture(scope="module")
def outcomes() -> list[tuple[Any, Any]]:
    """Of each body: what it is read as in this process, and by a worker."""
    read: list[tuple[Any, Any]] = []

    async def story(workers: Preprocessing) -> None:
        for endpoint, body in BODIES:
            given = job(endpoint, body)
            read.append((given.run(workers._model, LIMITS), await workers.run(given)))

    play(story)
    return read


@pytest.mark.parametrize("number", range(len(BODIES)))
def test_a_worker_reads_a_body_as_the_service_does(outcomes: list[tuple[Any, Any]], number: int) -> None:
    here, there = outcomes[number]
    assert type(there) is type(here)
    if isinstance(here, (bytes, ErrorReply)):
        assert there == here
    else:
        assert asked(there) == asked(here)


def asked(call: EndpointCall) -> EngineInputs:
    return call.inputs


@pytest.mark.parametrize(
    "template",
    [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{{ 'a' * 10**10 }}",
        "{% set found = namespace(text='aaaaaaaa') %}{% for a in range(60) %}"
        "{% set found.text = found.text ~ found.text %}{% endfor %}",
    ],
)
def test_a_hostile_template_ends_its_own_request_alone(
    hostile: Callable[[str], Path], template: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PreprocessingJob, "seconds", 0.5)

    async def story(workers: Preprocessing) -> None:
        refused, text = await asyncio.gather(
            workers.run(job(CHAT, HELLO)), workers.run(job(COMPLETIONS, {"prompt": "Once"}))
        )
        assert isinstance(refused, ErrorReply) and refused.status == 400, refused
        assert not isinstance(text, ErrorReply)
        assert not isinstance(await workers.run(job(COMPLETIONS, {"prompt": "Once"})), ErrorReply)

    play(story, hostile(template))


def test_a_worker_that_is_killed_is_replaced() -> None:
    async def story(workers: Preprocessing) -> None:
        await workers.warm_up()
        for worker in workers._workers:
            assert worker._process is not None
            os.kill(worker._process.pid, signal.SIGKILL)
            await worker._process.wait()
        for _ in workers._workers:
            assert not isinstance(await workers.run(job(CHAT, HELLO)), ErrorReply)

    play(story)


def test_a_worker_that_hangs_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PreprocessingJob, "seconds", 0.05)  # Ten times this is waited for.

    async def story(workers: Preprocessing) -> None:
        await workers.warm_up()
        stopped = workers._workers[0]._process
        assert stopped is not None
        os.kill(stopped.pid, signal.SIGSTOP)
        reply = await workers.run(job(CHAT, HELLO))
        assert isinstance(reply, ErrorReply) and "takes more than" in reply.message
        assert stopped.returncode is not None

    play(story)
    monkeypatch.undo()


def test_a_client_that_leaves_takes_nothing_with_it() -> None:
    async def story(workers: Preprocessing) -> None:
        await workers.warm_up()
        leaving = [asyncio.create_task(workers.run(job(CHAT, HELLO))) for _ in range(6)]
        await asyncio.sleep(0)
        for task in leaving:
            task.cancel()
        await asyncio.gather(*leaving, return_exceptions=True)
        await asyncio.gather(*workers._restarts)
        assert (
            not workers._waiting_short
            and not workers._waiting_long
            and not any(worker.is_busy for worker in workers._workers)
        )
        call = await workers.run(job(CHAT, {**HELLO, "max_tokens": 7}))
        assert call.inputs.params.max_tokens == 7, "not the outcome of a request that was left"

    play(story)


def test_long_jobs_leave_one_worker_to_short_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(workers: Preprocessing) -> None:
        entered: list[tuple[bool, bool]] = []

        async def note(worker: pool_module._Worker, given: PreprocessingJob) -> ErrorReply:
            entered.append((worker.takes_long, given.size > pool_module.SHORT))
            await asyncio.sleep(0)
            return ErrorReply(400, "seen")

        monkeypatch.setattr(pool_module._Worker, "run", note)
        long, short = {"prompt": "a" * pool_module.SHORT}, {"prompt": "a"}
        await asyncio.gather(*(workers.run(job(COMPLETIONS, body)) for body in [long] * 4 + [short] * 4))
        assert len(entered) == 8 and all(takes_long for takes_long, is_long in entered if is_long)

    play(story)
