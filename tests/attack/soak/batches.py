"""Batches whose every line has one right answer: each must come exactly once, however often anything is killed."""

import asyncio
import json
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import httpx

from tests.attack.conftest import by
from tests.attack.soak.expected import Expected, Question
from tests.attack.soak.ledger import Ledger
from tests.attack.soak.victim import Victim

NUM_LINES = 60
_PATIENCE = 180.0
"""Seconds that a batch may take after everything else has ended."""
_ENDED = ("completed", "failed", "expired", "cancelled")
_ENDPOINTS = {False: "/v1/completions", True: "/v1/chat/completions"}


class Batches:
    """One batch after another, each by one tenant."""

    def __init__(self, victim: Victim, expected: Expected, ledger: Ledger) -> None:
        self._victim = victim
        self._ledger = ledger
        self._questions = {
            is_chat: [one for one in expected.questions if one.is_chat is is_chat] for is_chat in (False, True)
        }

    async def run_until(self, seed: int, ended: Callable[[], bool]) -> None:
        rng = random.Random(seed)
        while not ended():
            is_chat = rng.random() < 0.5
            questions = {f"line {number}": rng.choice(self._questions[is_chat]) for number in range(NUM_LINES)}
            tenant = by(rng.choice(("alice", "bob")))
            batch_id = await self._create(_ENDPOINTS[is_chat], questions, tenant)
            batch = await self._completed(batch_id, tenant)
            await self._judge(batch, questions, tenant)

    async def _create(self, endpoint: str, questions: dict[str, Question], tenant: dict[str, str]) -> str:
        lines = [
            json.dumps({"custom_id": name, "method": "POST", "url": endpoint, "body": question.body})
            for name, question in questions.items()
        ]
        upload = {"file": ("soak.jsonl", "\n".join(lines).encode()), "purpose": (None, "batch")}
        file_id: str = (await self._ask("POST", "/v1/files", tenant, files=upload))["id"]
        asked = {"input_file_id": file_id, "endpoint": endpoint, "completion_window": "24h"}
        batch_id: str = (await self._ask("POST", "/v1/batches", tenant, json=asked))["id"]
        return batch_id

    async def _completed(self, batch_id: str, tenant: dict[str, str]) -> dict[str, Any]:
        async with asyncio.timeout(_PATIENCE + 600):
            while True:
                batch = await self._ask("GET", f"/v1/batches/{batch_id}", tenant)
                if batch["status"] in _ENDED:
                    return batch
                await asyncio.sleep(0.2)

    async def _judge(self, batch: dict[str, Any], questions: dict[str, Question], tenant: dict[str, str]) -> None:
        ledger, seen = self._ledger, Counter[str]()
        if batch["status"] != "completed":
            ledger.note(ledger.lost, f"batch {batch['id']} is {batch['status']}: {batch['errors']}")
            return
        for line in await self._lines(batch["output_file_id"], tenant):
            question = questions[line["custom_id"]]
            choice = line["response"]["body"]["choices"][0]
            found = choice["message"]["content"] or "" if question.is_chat else choice["text"]
            seen[line["custom_id"]] += 1
            if found != question.answer:
                ledger.note(ledger.wrong, f"batch line {question.body} was answered {found!r}")
        for line in await self._lines(batch["error_file_id"], tenant):
            seen[line["custom_id"]] += 1
            ledger.note(ledger.lost, f"batch line {line['custom_id']} failed: {str(line)[:300]}")
        for name in questions:
            if not seen[name]:
                ledger.note(ledger.lost, f"batch line {name} of {batch['id']} is not there")
            elif seen[name] > 1:
                ledger.note(ledger.doubled, f"batch line {name} of {batch['id']} is there {seen[name]} times")
        ledger.num_batches += 1
        ledger.num_lines += len(questions)

    async def _lines(self, file_id: str | None, tenant: dict[str, str]) -> list[dict[str, Any]]:
        if file_id is None:
            return []
        text: str = (await self._reply("GET", f"/v1/files/{file_id}/content", tenant)).text
        return [json.loads(line) for line in text.splitlines()]

    async def _ask(self, method: str, path: str, tenant: dict[str, str], **options: Any) -> dict[str, Any]:
        body: dict[str, Any] = (await self._reply(method, path, tenant, **options)).json()
        return body

    async def _reply(self, method: str, path: str, tenant: dict[str, str], **options: Any) -> httpx.Response:
        """As often as it takes: the service may be killed at any moment."""
        async with asyncio.timeout(_PATIENCE):
            while True:
                await self._victim.is_whole.wait()
                epoch = self._victim.epoch
                try:
                    async with httpx.AsyncClient(base_url=self._victim.url, headers=tenant, timeout=60) as client:
                        reply = await client.request(method, path, **options)
                except httpx.TransportError:
                    if epoch == self._victim.epoch and self._victim.is_whole.is_set():
                        raise
                    continue
                if reply.status_code == 200:
                    return reply
                assert reply.status_code == 503, f"{method} {path}: {reply.status_code} {reply.text[:300]}"
                await asyncio.sleep(0.1)
