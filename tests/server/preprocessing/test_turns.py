"""Jobs wait for a preprocessing worker in turns: short ones for no long one, and each tenant for no other."""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from archerfish.api.completions import CompletionsCall
from archerfish.api.errors import ErrorReply
from archerfish.api.limits import JsonLimits
from archerfish.box import models_in_box
from archerfish.config.speculation import NON_SPECULATIVE_METHODS
from archerfish.engine.wire import EngineFacts
from archerfish.server.preprocessing.pool import SHORT, Preprocessing
from archerfish.server.preprocessing.protocol import ModelSpec, PreprocessingJob, load_model


def job(endpoint: str, body: dict[str, Any]) -> PreprocessingJob:
    return PreprocessingJob(endpoint, json.dumps(body).encode())


TEXT = job("/v1/completions", {"prompt": "Once upon a time", "max_tokens": 4})
LONG = job("/tokenize", {"prompt": "a b c d " * 30_000})
SHORT_ENOUGH = job("/tokenize", {"prompt": "a b c d " * 1000})


def specification(tokenizer: Path) -> ModelSpec:
    facts = EngineFacts(
        model="perch",
        family="llama",
        tokenizer_directory=str(tokenizer),
        vocab_size=8192,
        hidden_size=64,
        embedding_sizes=(),
        max_model_len=1024,
        max_positions=1024,
        max_num_seqs=8,
        block_size=16,
        num_blocks=64,
        dtype="float32",
        device="cpu",
        speculation_methods=NON_SPECULATIVE_METHODS,
        recommended={},
    )
    return ModelSpec(facts, ("perch",), None, JsonLimits(2**18))


def play(tokenizer: Path, story: Callable[[Preprocessing], Awaitable[None]]) -> None:
    spec = specification(tokenizer)

    async def run() -> None:
        pool = Preprocessing(spec, load_model(spec, time.monotonic))
        try:
            await story(pool)
        finally:
            await pool.close()

    asyncio.run(run())


def test_a_text_on_which_the_tokenizer_panics_is_too_much() -> None:
    """The tokenizer's expressions look at one long word as a whole, and panic where memory for that is refused."""

    async def story(pool: Preprocessing) -> None:
        refused = await pool.run(job("/tokenize", {"prompt": "a" * 9_990_000}))
        assert isinstance(refused, ErrorReply)
        assert (refused.status, refused.code) == (400, "too_expensive")

    play(models_in_box()["perch"], story)


def test_long_jobs_never_hold_up_short_ones() -> None:
    async def story(pool: Preprocessing) -> None:
        assert LONG.size > SHORT > SHORT_ENOUGH.size
        order: list[str] = []

        async def run(one: PreprocessingJob) -> None:
            await pool.run(one)
            order.append("long" if one is LONG else "short")

        await pool.warm_up()
        await asyncio.gather(*(run(LONG) for _ in range(6)), *(run(SHORT_ENOUGH) for _ in range(6)))
        assert order.index("long") > 0 and order[-1] == "long"
        assert max(place for place, what in enumerate(order) if what == "short") <= 8

    play(models_in_box()["perch"], story)


def test_tenants_take_turns() -> None:
    async def story(pool: Preprocessing) -> None:
        order: list[str] = []

        async def run(tenant: str) -> None:
            await pool.run(LONG, tenant)
            order.append(tenant)

        await pool.warm_up()
        await asyncio.gather(*(run("alice") for _ in range(5)), run("bob"), run("carol"))
        assert order == ["alice", "alice", "bob", "carol", "alice", "alice", "alice"]

    play(models_in_box()["perch"], story)


def test_what_is_cancelled_while_it_waits_leaves_the_workers_to_others() -> None:
    async def story(pool: Preprocessing) -> None:
        tasks = [asyncio.create_task(pool.run(LONG)) for _ in range(3)]
        await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(one, asyncio.CancelledError) for one in ended)
        assert isinstance(await pool.run(TEXT), CompletionsCall)
        assert isinstance(await pool.run(LONG), bytes)

    play(models_in_box()["perch"], story)
