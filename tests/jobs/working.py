"""What tests of files and batches share: a clock of their own, inputs, and a runner that answers at once."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from archerfish.jobs.lines import AnswerLine, RunnerSettings
from archerfish.jobs.records import Batch, LineResult
from archerfish.jobs.runner import BatchRunner
from archerfish.jobs.store import JobStore

CHAT = "/v1/chat/completions"

# Results are saved at once, and changes are noticed by their events alone.
PROMPT = RunnerSettings(group_seconds=0.0, poll_seconds=3600.0)


class Clock:
    """Stands still until it is moved."""

    def __init__(self, now: float = 1_700_000_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


async def no_wait(_: float) -> None:
    """In place of asyncio.sleep: others get their turn, and no time passes."""
    await asyncio.sleep(0)


def line(custom_id: str, **changes: Any) -> dict[str, Any]:
    return {"custom_id": custom_id, "method": "POST", "url": CHAT, "body": {"text": f"to {custom_id}"}, **changes}


def jsonl(*records: Any) -> bytes:
    return b"".join(record if isinstance(record, bytes) else json.dumps(record).encode() + b"\n" for record in records)


def lines(count: int) -> bytes:
    return jsonl(*(line(f"request-{number}") for number in range(count)))


def upload(store: JobStore, content: bytes, tenant: str = "") -> str:
    return store.files.upload("input.jsonl", "batch", [content], tenant=tenant).file_id


def new_batch(store: JobStore, content: bytes, *, window: str = "24h", tenant: str = "") -> Batch:
    return store.batches.create(upload(store, content, tenant), CHAT, window, tenant=tenant)


def read(store: JobStore, file_id: str | None, tenant: str = "") -> list[dict[str, Any]]:
    """The records of an output or error file."""
    if file_id is None:
        return []
    with store.files.open(file_id, tenant=tenant) as stream:
        return [json.loads(text) for text in stream.read().splitlines()]


def ids(records: list[dict[str, Any]]) -> list[str]:
    return [record["custom_id"] for record in records]


async def echo(endpoint: str, body: bytes, custom_id: str, tenant: str) -> LineResult:
    """An answer that takes no time."""
    return LineResult(200, {"echo": json.loads(body), "tenant": tenant, "endpoint": endpoint}, f"req_{custom_id}")


class Gate:
    """Answers lines when the test says so, and reports which have come."""

    def __init__(self) -> None:
        self.waiting: dict[str, asyncio.Future[LineResult]] = {}
        self.seen: list[str] = []
        self.cancelled: list[str] = []
        self._came = asyncio.Event()

    async def __call__(self, endpoint: str, body: bytes, custom_id: str, tenant: str) -> LineResult:
        self.seen.append(custom_id)
        future = self.waiting[custom_id] = asyncio.get_running_loop().create_future()
        self._came.set()
        try:
            return await future
        except asyncio.CancelledError:
            self.cancelled.append(custom_id)
            raise
        finally:
            self.waiting.pop(custom_id, None)

    async def until(self, count: int) -> None:
        """So many lines wait."""
        while len(self.waiting) < count:
            self._came.clear()
            await self._came.wait()

    def answer(self, custom_id: str) -> None:
        self.waiting.pop(custom_id).set_result(LineResult(200, {"for": custom_id}, "req"))

    def fail(self, custom_id: str, error: Exception) -> None:
        self.waiting.pop(custom_id).set_exception(error)


def run_all(store: JobStore, answer: AnswerLine, **options: Any) -> None:
    """Run every open batch to its end."""

    async def work() -> None:
        runner = BatchRunner(store, answer, **{"settings": PROMPT, "wait": no_wait, **options})
        task = runner.start()
        ends = [asyncio.ensure_future(runner.finished(batch.batch_id, tenant=batch.tenant)) for batch in batches]
        await asyncio.wait([task, asyncio.gather(*ends)], return_when=asyncio.FIRST_COMPLETED)
        await runner.stop()
        task.result()
        for end in ends:
            end.result()

    batches = store.work.open_batches()
    within(work)


def within(work: Callable[[], Awaitable[None]], seconds: float = 60.0) -> None:
    """Run a coroutine. One that hangs fails."""

    async def limited() -> None:
        await asyncio.wait_for(work(), seconds)

    asyncio.run(limited())


def again(store: JobStore, batch: Batch) -> Batch:
    """The batch as it is now."""
    return store.batches.get(batch.batch_id, tenant=batch.tenant)


def contents(directory: Path) -> list[str]:
    """Names of everything that takes space, except the database."""
    return sorted(path.name for folder in ("files", "drafts") for path in (directory / folder).iterdir())
