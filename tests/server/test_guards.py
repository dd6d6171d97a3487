"""What stands before the endpoints: errors in each API's shape, origins, priorities, usage, a full disk."""

import asyncio
import errno
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from archerfish.jobs import unpublished_files
from tests.server.scripted import ScriptedService, scripted_service

KEYS = """
[[key]]
name = "alice"
key = "alice-secret"
min_priority = -5

[[key]]
name = "bob"
key = "bob-secret"
requests_per_minute = 1

[[key]]
name = "carol"
key = "carol-secret"

[[key]]
name = "slow"
key = "slow-secret"
requests_per_minute = 4
"""
ASK: dict[str, Any] = {"prompt": [1, 2, 3], "max_tokens": 2}
MESSAGE: dict[str, Any] = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2}


@asynccontextmanager
async def guarded(directory: Path, **settings: Any) -> AsyncIterator[ScriptedService]:
    file = directory / "keys.toml"
    file.write_text(KEYS)
    file.chmod(0o600)
    async with scripted_service(key_file=str(file), **settings) as running:
        yield running


def by(name: str) -> dict[str, str]:
    return {"x-api-key": f"{name}-secret"}


def play(story: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(story())  # type: ignore[arg-type]


# -- errors -----------------------------------------------------------------------------------------------------------


def check_anthropic(reply: httpx.Response, status: int, kind: str) -> None:
    assert reply.status_code == status, reply.text
    told = reply.json()
    assert told["type"] == "error" and set(told) == {"type", "error"}
    assert told["error"]["type"] == kind and told["error"]["message"]
    assert reply.headers["X-Request-Id"]


def test_every_error_of_messages_has_anthropic_s_shape(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        async with guarded(tmp_path, max_body_bytes=2000, shutdown_timeout=0.0) as (service, client, _):
            for path in ("/v1/messages", "/v1/messages/count_tokens"):
                check_anthropic(await client.post(path, json=MESSAGE), 401, "authentication_error")
            bobs = [await client.post("/v1/messages", json=MESSAGE, headers=by("bob")) for _ in range(2)]
            assert bobs[0].status_code == 200, bobs[0].text
            check_anthropic(bobs[1], 429, "rate_limit_error")
            assert int(bobs[1].headers["Retry-After"]) >= 1
            client.headers.update(by("carol"))
            first = await client.post("/v1/messages", json={**MESSAGE, "priority": -1})
            check_anthropic(first, 403, "permission_error")
            check_anthropic(await client.post("/v1/messages/nothing", json=MESSAGE), 404, "not_found_error")
            check_anthropic(await client.get("/v1/messages"), 405, "invalid_request_error")
            large = {**MESSAGE, "system": "a" * 3000}
            check_anthropic(await client.post("/v1/messages", json=large), 413, "request_too_large")
            with monkeypatch.context() as patched:
                patched.setattr(service.engine, "submit", lambda _: 1 / 0)
                check_anthropic(await client.post("/v1/messages", json=MESSAGE), 500, "api_error")
            await service.drain()
            check_anthropic(await client.post("/v1/messages", json=MESSAGE), 503, "overloaded_error")

    play(story)


def test_other_paths_keep_openai_s_shape(tmp_path: Path) -> None:
    async def story() -> None:
        async with guarded(tmp_path) as (_, client, _):
            for path in ("/v1/completions", "/v1/messages-of-mine"):
                told = (await client.post(path, json=ASK)).json()
                assert told["error"]["code"] == "invalid_api_key" and "type" not in told
            told = (await client.post("/v1/messages-of-mine", json=ASK, headers=by("carol"))).json()
            assert told["error"]["type"] == "not_found_error" and "type" not in told

    play(story)


# -- priorities -------------------------------------------------------------------------------------------------------


def test_a_key_raises_its_priority_as_far_as_its_file_says(tmp_path: Path) -> None:
    async def story() -> None:
        async with guarded(tmp_path) as (_, client, _):

            async def ask(name: str, priority: int) -> httpx.Response:
                return await client.post("/v1/completions", json={**ASK, "priority": priority}, headers=by(name))

            for name, priority in (("alice", -5), ("alice", 7), ("carol", 0), ("carol", 3)):
                assert (await ask(name, priority)).status_code == 200
            for name, priority in (("alice", -6), ("carol", -1)):
                refused = await ask(name, priority)
                error = refused.json()["error"]
                assert refused.status_code == 403 and error["type"] == "permission_error"
                assert (error["param"], error["code"]) == ("priority", "priority_not_allowed")
                assert f"min_priority = {priority}" in error["message"] and name in error["message"]

    play(story)


def test_without_a_key_file_any_priority_may_be_named() -> None:
    async def story() -> None:
        for settings in ({}, {"api_key": ("alice-secret",)}):
            async with scripted_service(**settings) as (_, client, _):
                reply = await client.post("/v1/completions", json={**ASK, "priority": -9}, headers=by("alice"))
                assert reply.status_code == 200

    play(story)


def test_lines_of_a_batch_are_bound_by_their_owner_s_priority(tmp_path: Path) -> None:
    async def story() -> None:
        async with guarded(tmp_path, data_dir=str(tmp_path / "jobs")) as (_, client, _):
            client.headers.update(by("carol"))
            lines = [
                {"custom_id": str(at), "method": "POST", "url": "/v1/completions", "body": {**ASK, "priority": at}}
                for at in (-1, 1)
            ]
            batch = await batch_of(client, lines)
            while batch["status"] not in ("completed", "failed"):
                batch = (await client.get(f"/v1/batches/{batch['id']}")).json()
            assert batch["request_counts"] == {"total": 2, "completed": 1, "failed": 1}, batch
            text = (await client.get(f"/v1/files/{batch['error_file_id']}/content")).text
            assert json.loads(text)["response"]["status_code"] == 403

    play(story)


async def batch_of(client: httpx.AsyncClient, lines: list[dict[str, Any]]) -> dict[str, Any]:
    content = "\n".join(json.dumps(line) for line in lines).encode()
    uploaded = await client.post("/v1/files", files={"file": ("a.jsonl", content)}, data={"purpose": "batch"})
    body = {"input_file_id": uploaded.json()["id"], "endpoint": "/v1/completions", "completion_window": "24h"}
    reply = await client.post("/v1/batches", json=body)
    assert reply.status_code == 200, reply.text
    batch: dict[str, Any] = reply.json()
    return batch


# -- what a key has used ----------------------------------------------------------------------------------------------


def test_each_key_sees_what_it_has_used_and_nothing_else(tmp_path: Path) -> None:
    async def story() -> None:
        async with guarded(tmp_path) as (service, client, _):
            assert (await client.get("/usage")).status_code == 401
            prompt = list(range(1, 41))
            for _ in range(2):
                asked = {"prompt": prompt, "max_tokens": 3}
                assert (await client.post("/v1/completions", json=asked, headers=by("alice"))).status_code == 200
            expected = {"requests": 2, "input_tokens": 80, "cached_tokens": 32, "output_tokens": 6}
            told = (await client.get("/usage", headers=by("alice"))).json()
            assert told == {"object": "usage", "key": "alice", "since": service.started_at, **expected}
            told = (await client.get("/usage", headers=by("bob"))).json()
            assert told == {"object": "usage", "key": "bob", "since": service.started_at, **dict.fromkeys(expected, 0)}

    play(story)


def test_what_one_key_has_sent_is_not_cached_for_another(tmp_path: Path) -> None:
    async def story() -> None:
        async with guarded(tmp_path) as (_, client, _):
            for number, salt in enumerate(("", "mine", "key alice\0")):
                body = {"prompt": list(range(number, 40 + number)), "max_tokens": 1, "cache_salt": salt}
                for name, cached in (("alice", 0), ("carol", 0), ("alice", 32), ("carol", 32)):
                    reply = await client.post("/v1/completions", json=body, headers=by(name))
                    assert reply.status_code == 200, reply.text
                    details = reply.json()["usage"]["prompt_tokens_details"]
                    assert details["cached_tokens"] == cached, (name, salt)

    play(story)


def test_one_body_cannot_fill_the_queue_for_other_keys(tmp_path: Path) -> None:
    async def story() -> None:
        async with guarded(tmp_path, max_queued_requests=20) as (service, client, _):
            for many in ({"prompt": ["a"] * 11}, {"prompt": "a", "n": 11}, {"prompt": ["a"] * 4, "n": 3}):
                reply = await client.post("/v1/completions", json={"max_tokens": 1, **many}, headers=by("alice"))
                assert reply.status_code == 400 and reply.json()["error"]["code"] == "too_many_answers", reply.text
            body = {"prompt": ["a"] * 5, "n": 2, "max_tokens": 1}
            assert (await client.post("/v1/completions", json=body, headers=by("alice"))).status_code == 200
            assert service._admission.num_sequences == 0

    play(story)


def test_tokenizing_counts_as_a_request(tmp_path: Path) -> None:
    async def story() -> None:
        async with guarded(tmp_path) as (_, client, _):
            for path, body in (("/tokenize", {"prompt": "a"}), ("/detokenize", {"tokens": [1]})) * 2:
                assert (await client.post(path, json=body, headers=by("slow"))).status_code == 200
            refused = await client.post("/tokenize", json={"prompt": "a"}, headers=by("slow"))
            assert refused.status_code == 429 and refused.json()["error"]["code"] == "rate_limit_exceeded"

    play(story)


def test_a_model_may_have_several_names() -> None:
    async def story() -> None:
        async with scripted_service(served_model_name=("first", "second")) as (_, client, _):
            assert [one["id"] for one in (await client.get("/v1/models")).json()["data"]] == ["first", "second"]
            assert (await client.get("/v1/models/second")).json()["id"] == "second"
            for name in ("first", "second"):
                reply = await client.post("/v1/completions", json={**ASK, "model": name})
                assert reply.status_code == 200 and reply.json()["model"] == "first"
            refused = await client.post("/v1/completions", json={**ASK, "model": "third"})
            assert (
                refused.status_code == 404
                and "this service serves 'first', 'second'" in refused.json()["error"]["message"]
            )

    play(story)


def test_without_keys_usage_is_everybody_s() -> None:
    async def story() -> None:
        async with scripted_service() as (_, client, _):
            await client.post("/v1/completions", json=ASK)
            told = (await client.get("/usage")).json()
            assert (told["key"], told["requests"], told["output_tokens"]) == (None, 1, 2)

    play(story)


# -- origins ----------------------------------------------------------------------------------------------------------


def preflight(origin: str) -> dict[str, str]:
    return {
        "Origin": origin,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization, content-type",
    }


def test_pages_may_call_from_origins_that_were_named(tmp_path: Path) -> None:
    async def story() -> None:
        async with guarded(tmp_path, cors_origins="https://one.example, https://two.example") as (_, client, _):
            for origin in ("https://one.example", "https://two.example"):
                allowed = await client.options("/v1/completions", headers=preflight(origin))
                assert allowed.status_code == 200, "asked without a key: browsers send none"
                assert allowed.headers["Access-Control-Allow-Origin"] == origin
                assert "authorization" in allowed.headers["Access-Control-Allow-Headers"].lower()
                reply = await client.post("/v1/completions", json=ASK, headers={"Origin": origin, **by("carol")})
                assert reply.status_code == 200 and reply.headers["Access-Control-Allow-Origin"] == origin
                refused = await client.post("/v1/completions", json=ASK, headers={"Origin": origin})
                assert refused.status_code == 401, "a page can read why"
                assert refused.headers["Access-Control-Allow-Origin"] == origin
            other = "https://one.example.evil"
            refused = await client.options("/v1/completions", headers=preflight(other))
            assert refused.status_code == 400 and "Access-Control-Allow-Origin" not in refused.headers
            reply = await client.get("/v1/models", headers={"Origin": other, **by("carol")})
            assert "Access-Control-Allow-Origin" not in reply.headers

    play(story)


def test_any_origin_and_none() -> None:
    async def story() -> None:
        origin = "https://anywhere.example"
        async with scripted_service(cors_origins="*") as (_, client, _):
            assert (await client.options("/v1/models", headers=preflight(origin))).status_code == 200
            reply = await client.get("/v1/models", headers={"Origin": origin})
            assert reply.headers["Access-Control-Allow-Origin"] == "*"
        async with scripted_service() as (_, client, _):
            assert (await client.options("/v1/models", headers=preflight(origin))).status_code == 403
            reply = await client.get("/v1/models", headers={"Origin": origin})
            assert reply.status_code == 403 and "--cors-origins" in reply.json()["error"]["message"]
            assert "Access-Control-Allow-Origin" not in reply.headers

    play(story)


# -- a full disk ------------------------------------------------------------------------------------------------------


def check_full(reply: httpx.Response) -> None:
    error = reply.json()["error"]
    assert reply.status_code == 507, reply.text
    assert error["type"] == "server_error" and "no space left to write" in error["message"]


def test_a_full_disk_is_told_and_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        async with scripted_service(data_dir=str(tmp_path / "jobs")) as (service, client, _):
            file = {"file": ("a.jsonl", b"{}")}
            with monkeypatch.context() as patched:
                patched.setattr(unpublished_files.os, "fsync", _no_room)
                check_full(await client.post("/v1/files", files=file, data={"purpose": "batch"}))
            kept = await client.post("/v1/files", files=file, data={"purpose": "batch"})
            assert kept.status_code == 200, "there is room again"
            body = {"input_file_id": kept.json()["id"], "endpoint": "/v1/completions"}
            # More than one page of the database, so that it cannot fit into what is there already.
            wide = {**body, "metadata": {f"name {number}": "x" * 500 for number in range(16)}}
            assert service.jobs is not None
            limit_pages(service.jobs, is_full=True)
            check_full(await client.post("/v1/batches", json=wide))
            limit_pages(service.jobs, is_full=False)
            assert (await client.post("/v1/batches", json=wide)).status_code == 200

    play(story)


def _no_room(_: int) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def limit_pages(store: Any, *, is_full: bool) -> None:
    """Let SQLite itself say that it is full."""
    with store._database.reading() as connection:
        used = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count = {used if is_full else 2**31 - 2}")


# -- ids and slots ----------------------------------------------------------------------------------------------------


def test_one_id_may_be_open_many_times(tmp_path: Path) -> None:
    async def story() -> None:
        async with guarded(tmp_path) as (_, client, _):
            body = {**ASK, "request_id": "same"}
            headers = {"X-Request-Id": "same"}
            replies = await asyncio.gather(
                *(
                    client.post("/v1/completions", json=body, headers={**by(name), **headers})
                    for name in ("alice", "carol") * 8
                )
            )
            assert {reply.status_code for reply in replies} == {200}
            assert {reply.headers["X-Request-Id"] for reply in replies} == {"same"}

    play(story)


@pytest.mark.parametrize("fails", ["submit", "encode", "started", "second"])
def test_a_request_that_fails_while_it_is_opened_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    async def story() -> None:
        async with guarded(tmp_path, shutdown_timeout=600.0) as (service, client, _):
            body = {**ASK, "prompt": [[1, 2, 3], [4, 5, 6], [7, 8, 9]]}
            with monkeypatch.context() as patched:
                if fails == "started":
                    patched.setattr(service.metrics, "request_started", lambda _: 1 / 0)
                elif fails == "encode":
                    patched.setattr("archerfish.engine.async_engine.encode", lambda _: 1 / 0)
                else:
                    patched.setattr(service.engine, "submit", failing_after(service.engine.submit, fails == "second"))
                reply = await client.post("/v1/completions", json=body, headers=by("carol"))
                assert reply.status_code == 500
            assert service._admission.num_sequences == 0 and service._admission.num_tokens == 0
            assert service.engine.num_open == 0
            assert (await client.post("/v1/completions", json=body, headers=by("carol"))).status_code == 200
            await service.drain()  # It would wait for ten minutes if a request were still counted.

    play(story)


def failing_after(submit: Any, goes_well_once: bool) -> Any:
    left = [goes_well_once]

    def submit_or_fail(request: Any) -> Any:
        if not any(left):
            raise OverflowError("cannot be sent")
        left[0] = False
        return submit(request)

    return submit_or_fail
