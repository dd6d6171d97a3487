"""Clients of the service: each asks one thing, and compares the answer with the one that is right."""

import asyncio
import json
import random
import ssl
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import httpx

from tests.attack.conftest import by
from tests.attack.hostile import VALID, hostile_bodies
from tests.attack.soak.expected import Expected, Question
from tests.attack.soak.ledger import Ledger
from tests.attack.soak.victim import Victim

_TOLERANCE = 1e-3
_TLS = ssl.create_default_context()
"""Not used, but each client would make one of its own, which takes longer than what it asks."""


class _Unfinished(Exception):
    """A request ended without an answer; why."""


class Kind(NamedTuple):
    name: str
    weight: int
    visit: Callable[[httpx.AsyncClient, random.Random], Awaitable[None]]


class Visitors:
    """Everything that a client may do, in random order."""

    def __init__(self, victim: Victim, expected: Expected, ledger: Ledger) -> None:
        self._victim = victim
        self._expected = expected
        self._ledger = ledger
        self._texts = [one for one in expected.questions if not one.is_chat and not one.is_bound]
        self._chats = [one for one in expected.questions if one.is_chat]
        self._forms = [one for one in expected.questions if one.is_bound]
        self.kinds = (
            Kind("completion", 6, self._completion),
            Kind("stream", 6, self._stream),
            Kind("chat", 4, self._chat),
            Kind("chat stream", 3, self._chat_stream),
            Kind("message", 2, self._message),
            Kind("response", 2, self._response),
            Kind("form", 3, self._form),
            Kind("disconnect", 4, self._disconnect),
            Kind("embedding", 1, self._embedding),
            Kind("tokens", 2, self._tokens),
            Kind("file", 1, self._file),
            Kind("malformed", 4, self._malformed),
            Kind("health", 1, self._health),
        )

    async def visit_until(self, seed: int, ended: Callable[[], bool]) -> None:
        """One client that asks one thing after the other."""
        rng = random.Random(seed)
        weights = [kind.weight for kind in self.kinds]
        while not ended():
            await self._victim.is_whole.wait()
            name = by(rng.choice(("alice", "bob")))
            [kind] = rng.choices(self.kinds, weights)
            epoch = self._victim.epoch
            async with httpx.AsyncClient(base_url=self._victim.url, headers=name, timeout=120, verify=_TLS) as client:
                try:
                    await kind.visit(client, rng)
                except AssertionError as error:
                    self._ledger.note(self._ledger.wrong, f"{kind.name}: {error}")
                except (_Unfinished, httpx.TransportError) as error:
                    self._unanswered(kind.name, epoch, error)
                else:
                    self._ledger.answered[kind.name] += 1

    def _unanswered(self, kind: str, epoch: int, error: Exception) -> None:
        if epoch != self._victim.epoch or not self._victim.is_whole.is_set():
            self._ledger.excused[kind] += 1
            return
        failures = self._ledger.refused if isinstance(error, _Unfinished) else self._ledger.lost
        self._ledger.note(failures, f"{kind}: {error!r}")

    # -- questions ------------------------------------------------------------------------------------------------

    async def _completion(self, client: httpx.AsyncClient, rng: random.Random) -> None:
        question = rng.choice(self._texts)
        reply = await _post(client, "/v1/completions", question.body)
        _compare(reply["choices"][0]["text"], question)

    async def _form(self, client: httpx.AsyncClient, rng: random.Random) -> None:
        question = rng.choice(self._forms)
        reply = await _post(client, "/v1/completions", question.body)
        _compare(reply["choices"][0]["text"], question)

    async def _stream(self, client: httpx.AsyncClient, rng: random.Random) -> None:
        await _follow(client, "/v1/completions", rng.choice(self._texts), None)

    async def _chat_stream(self, client: httpx.AsyncClient, rng: random.Random) -> None:
        await _follow(client, "/v1/chat/completions", rng.choice(self._chats), None)

    async def _disconnect(self, client: httpx.AsyncClient, rng: random.Random) -> None:
        path, questions = rng.choice((("/v1/completions", self._texts), ("/v1/chat/completions", self._chats)))
        await _follow(client, path, rng.choice(questions), rng.randrange(20))

    async def _chat(self, client: httpx.AsyncClient, rng: random.Random) -> None:
        question = rng.choice(self._chats)
        reply = await _post(client, "/v1/chat/completions", question.body)
        _compare(reply["choices"][0]["message"]["content"] or "", question)

    async def _message(self, client: httpx.AsyncClient, rng: random.Random) -> None:
        question = rng.choice(self._chats)
        reply = await _post(client, "/v1/messages", question.body)
        _compare("".join(block["text"] for block in reply["content"]), question)

    async def _response(self, client: httpx.AsyncClient, rng: random.Random) -> None:
        question = rng.choice(self._chats)
        body = {name: value for name, value in question.body.items() if name not in ("messages", "max_tokens")}
        body |= {"input": question.body["messages"], "max_output_tokens": question.body["max_tokens"]}
        reply = await _post(client, "/v1/responses", {**body, "store": rng.random() < 0.5})
        texts = [part["text"] for item in reply["output"] for part in item.get("content", ())]
        _compare("".join(texts), question)

    # -- others ---------------------------------------------------------------------------------------------------

    async def _embedding(self, client: httpx.AsyncClient, rng: random.Random) -> None:
        text, expected = rng.choice(self._expected.embeddings)
        reply = await _post(client, "/v1/embeddings", {"input": text})
        found = reply["data"][0]["embedding"]
        scale = sum(value * value for value in expected) ** 0.5
        length = sum(value * value for value in found) ** 0.5
        # Either as it is or of length one: what counts is where it points.
        cosine = sum(one * other for one, other in zip(found, expected, strict=True)) / (scale * length)
        assert abs(cosine - 1) < _TOLERANCE, f"the embedding of {text!r} points elsewhere"

    async def _tokens(self, client: httpx.AsyncClient, rng: random.Random) -> None:
        text = rng.choice(self._texts).body["prompt"]
        token_ids = (await _post(client, "/tokenize", {"prompt": text}))["tokens"]
        again = (await _post(client, "/detokenize", {"tokens": token_ids}))["prompt"]
        assert again == text, f"{text!r} came back as {again!r}"

    async def _file(self, client: httpx.AsyncClient, rng: random.Random) -> None:
        content = json.dumps({"number": rng.random(), "filler": "x" * rng.randrange(200_000)}).encode()
        upload = {"file": ("a.jsonl", content), "purpose": (None, "batch")}
        reply = await client.post("/v1/files", files=upload)
        file_id = _checked(reply)["id"]
        found = await client.get(f"/v1/files/{file_id}/content")
        if found.status_code != 200:
            raise _Unfinished(f"{found.status_code} {found.text[:200]}")
        assert found.content == content, f"file {file_id} changed"
        _checked(await client.delete(f"/v1/files/{file_id}"))

    async def _malformed(self, client: httpx.AsyncClient, rng: random.Random) -> None:
        """Errors of the service itself are none of the answers that a malformed body may get."""
        seed = rng.randrange(10**6)
        for body in hostile_bodies(seed, len(VALID)):
            if rng.random() < 0.1:
                kind = {"Content-Type": "application/json"}
                reply = await client.post(body.path, content=body.content, headers=kind)
                if reply.status_code >= 500:
                    raise _Unfinished(f"{reply.status_code} to a body of seed {seed}: {reply.text[:200]}")

    async def _health(self, client: httpx.AsyncClient, _rng: random.Random) -> None:
        for path in ("/health/live", "/metrics", "/usage", "/v1/models"):
            reply = await client.get(path)
            if reply.status_code != 200:
                raise _Unfinished(f"{path}: {reply.status_code} {reply.text[:200]}")


async def _post(client: httpx.AsyncClient, path: str, body: dict[str, Any]) -> dict[str, Any]:
    return _checked(await client.post(path, json=body))


def _checked(reply: httpx.Response) -> dict[str, Any]:
    if reply.status_code != 200:
        raise _Unfinished(f"{reply.status_code} {reply.text[:200]}")
    body: dict[str, Any] = reply.json()
    return body


def _compare(found: str, question: Question) -> None:
    assert found == question.answer, f"{question.body} was answered {found!r} instead of {question.answer!r}"


async def _follow(client: httpx.AsyncClient, path: str, question: Question, most_lines: int | None) -> None:
    """Read a stream to its end, or hang up after so many lines. What has come is right so far, whatever happens."""
    text, ended, num_lines = "", False, 0
    async with client.stream("POST", path, json={**question.body, "stream": True}) as reply:
        if reply.status_code != 200:
            raise _Unfinished(f"{reply.status_code} {(await reply.aread())[:200]!r}")
        async for line in reply.aiter_lines():
            if line == "data: [DONE]":
                ended = True
            elif line.startswith("data: "):
                event = json.loads(line.removeprefix("data: "))
                if "error" in event:
                    raise _Unfinished(event["error"]["message"])
                for choice in event["choices"]:
                    text += choice["text"] if "text" in choice else choice["delta"].get("content") or ""
                assert question.answer.startswith(text), f"{question.body} begins with {text!r}"
            num_lines += 1
            if most_lines is not None and num_lines >= most_lines:
                return
    if not ended:
        raise _Unfinished("the stream ended without its last line")
    _compare(text, question)


async def wait_for(tasks: "list[asyncio.Task[None]]") -> None:
    """All of them, or the first error of one, which ends the others."""
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
