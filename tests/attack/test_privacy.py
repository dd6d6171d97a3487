"""What one key can learn of another, or take from it: nothing."""

import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.server.running import RunningService, running_service

KEYS = """
[[key]]
name = "alice"
key = "alice-secret"

[[key]]
name = "bob"
key = "bob-secret"

[[key]]
name = "teammate"
key = "teammate-secret"
cache_group = "team"

[[key]]
name = "colleague"
key = "colleague-secret"
cache_group = "team"

[[key]]
name = "group team"
key = "impostor-secret"

[[key]]
name = "limited"
key = "limited-secret"
requests_per_minute = 3

[[key]]
name = "operator"
key = "operator-secret"
admin = true
"""
SECRET = "The combination of the safe in the office is seven four one nine eight. " * 6


@pytest.fixture(scope="module")
def private(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    directory = tmp_path_factory.mktemp("private")
    file = directory / "keys.toml"
    file.write_text(KEYS)
    file.chmod(0o600)
    with running_service("--key-file", str(file), "--data-dir", str(directory / "jobs")) as running:
        yield running


def by(name: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {name}-secret"}


def num_cached(service: RunningService, name: str, prompt: str, **more: Any) -> int:
    body = {"prompt": prompt, "max_tokens": 1, "temperature": 0, **more}
    reply = httpx.post(f"{service.url}/v1/completions", json=body, headers=by(name), timeout=60)
    assert reply.status_code == 200, reply.text
    return int(reply.json()["usage"]["prompt_tokens_details"]["cached_tokens"])


def test_no_key_learns_from_the_cache_what_another_asked(private: RunningService) -> None:
    assert num_cached(private, "alice", SECRET) == 0
    assert num_cached(private, "alice", SECRET) > 0, "its own prefixes are shared"
    assert num_cached(private, "bob", SECRET) == 0


@pytest.mark.parametrize(
    "salt",
    ["", "key alice", "key alice\0", "\0", "key alice\0key alice\0", "alice", "bob\0", "\0key alice\0"],
)
def test_no_salt_reaches_into_another_key_s_cache(private: RunningService, salt: str) -> None:
    assert num_cached(private, "alice", "Salted. " + SECRET, cache_salt=salt) == 0
    assert num_cached(private, "bob", "Salted. " + SECRET, cache_salt=salt) == 0
    for guessed in ("", "key alice", f"key alice\0{salt}", f"\0key alice\0{salt}"):
        # What bob computed himself under a salt may be found again, so each prompt is new to him.
        prompt = f"{guessed!r} and {salt!r}. " + SECRET
        num_cached(private, "alice", prompt, cache_salt=salt)
        assert num_cached(private, "bob", prompt, cache_salt=guessed) == 0


def test_keys_of_a_group_share_prefixes_and_a_name_like_a_group_does_not(private: RunningService) -> None:
    assert num_cached(private, "teammate", "Group. " + SECRET) == 0
    assert num_cached(private, "colleague", "Group. " + SECRET) > 0
    assert num_cached(private, "impostor", "Group. " + SECRET) == 0


def test_metrics_name_a_key_only_to_itself_and_to_an_admin(private: RunningService) -> None:
    for name in ("alice", "bob"):
        num_cached(private, name, "Hello")
    seen = {name: httpx.get(f"{private.url}/metrics", headers=by(name)).text for name in ("bob", "operator")}
    assert '"alice"' in seen["operator"] and '"bob"' in seen["operator"]
    assert '"bob"' in seen["bob"] and '"alice"' not in seen["bob"]


def test_every_request_that_costs_work_counts(private: RunningService) -> None:
    statuses = []
    for path, body in (
        ("/tokenize", {"prompt": "Hello"}),
        ("/detokenize", {"tokens": [5]}),
        ("/v1/messages/count_tokens", {"messages": [{"role": "user", "content": "Hello"}]}),
        ("/tokenize", {"prompt": "Hello"}),
        ("/v1/completions", {"prompt": "Hello", "max_tokens": 1}),
    ):
        statuses.append(httpx.post(f"{private.url}{path}", json=body, headers=by("limited"), timeout=60).status_code)
    assert statuses == [200, 200, 200, 429, 429]


def test_files_batches_and_responses_of_one_key_are_not_there_for_another(private: RunningService) -> None:
    with httpx.Client(base_url=private.url, timeout=60) as client:
        line = (
            '{"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "A", "max_tokens": 1}}'
        )
        upload = {"file": ("a.jsonl", line.encode()), "purpose": (None, "batch")}
        file_id = client.post("/v1/files", files=upload, headers=by("alice")).json()["id"]
        asked = {"input_file_id": file_id, "endpoint": "/v1/completions", "completion_window": "24h"}
        batch_id = client.post("/v1/batches", json=asked, headers=by("alice")).json()["id"]
        spoken = {"input": "Hello", "max_output_tokens": 2}
        response_id = client.post("/v1/responses", json=spoken, headers=by("alice")).json()["id"]
        output_id = None
        end = time.monotonic() + 60
        while output_id is None and time.monotonic() < end:
            output_id = client.get(f"/v1/batches/{batch_id}", headers=by("alice")).json()["output_file_id"]
        paths = [f"/v1/files/{one}{rest}" for one in (file_id, output_id) for rest in ("", "/content")]
        paths += [f"/v1/batches/{batch_id}", f"/v1/responses/{response_id}"]
        for path in paths:
            assert client.get(path, headers=by("alice")).status_code == 200, path
            assert client.get(path, headers=by("bob")).status_code == 404, path
        assert client.post(f"/v1/batches/{batch_id}/cancel", headers=by("bob")).status_code == 404
        assert client.post("/v1/batches", json=asked, headers=by("bob")).status_code in (400, 404)
        for path in (f"/v1/files/{file_id}", f"/v1/responses/{response_id}"):
            assert client.delete(path, headers=by("bob")).status_code == 404
        continued = {**spoken, "previous_response_id": response_id}
        assert client.post("/v1/responses", json=continued, headers=by("bob")).status_code in (400, 404)
        for path in ("/v1/files", "/v1/batches"):
            assert client.get(path, headers=by("bob")).json()["data"] == []
