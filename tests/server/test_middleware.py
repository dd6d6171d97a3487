"""Who may come in, how much of it, and what can be watched."""

import json
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.server.conftest import SETTINGS
from tests.server.running import RunningService, running_service

KEYS = """
[[key]]
name = "alice"
key = "alice-secret"

[[key]]
name = "bob"
key = "bob-secret"
requests_per_minute = 2

[[key]]
name = "operator"
key = "operator-secret"
admin = true
"""


def ask(url: str, key: str | None, **more: Any) -> httpx.Response:
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    body = {"prompt": "Once", "max_tokens": 2, **more}
    return httpx.post(f"{url}/v1/completions", json=body, headers=headers, timeout=60)


def test_keys_names_and_limits(tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    file.write_text(KEYS)
    file.chmod(0o600)
    with running_service(*SETTINGS, "--key-file", str(file), "--data-dir", str(tmp_path / "jobs")) as service:
        for wrong in (None, "alice", "alice-secret2"):
            reply = ask(service.url, wrong)
            assert reply.status_code == 401 and reply.json()["error"]["code"] == "invalid_api_key"
        assert ask(service.url, "alice-secret").status_code == 200
        assert httpx.get(f"{service.url}/v1/models", headers={"x-api-key": "alice-secret"}).status_code == 200
        first, second, third = (ask(service.url, "bob-secret") for _ in range(3))
        assert first.status_code == second.status_code == 200
        assert first.headers["x-ratelimit-limit-requests"] == "2"
        assert third.status_code == 429 and int(third.headers["Retry-After"]) >= 1
        assert httpx.get(f"{service.url}/health").status_code == 200, "who watches needs no key"
        assert httpx.get(f"{service.url}/metrics").status_code == 401
        alice, bob = (
            openai.OpenAI(base_url=f"{service.url}/v1", api_key=f"{name}-secret", max_retries=0)
            for name in ("alice", "bob")
        )
        file_id = alice.files.create(file=("a.jsonl", b"{}"), purpose="batch").id
        with pytest.raises(openai.NotFoundError):
            bob.files.retrieve(file_id)
        shown = {
            name: httpx.get(f"{service.url}/metrics", headers={"x-api-key": f"{name}-secret"}).text
            for name in ("alice", "bob", "operator")
        }
        assert 'tenant="alice"' in shown["alice"] and 'tenant="bob"' not in shown["alice"]
        assert 'tenant="bob"' in shown["bob"] and 'tenant="alice"' not in shown["bob"]
        assert 'tenant="bob"' in shown["operator"] and 'tenant="alice"' in shown["operator"]
        assert not any("alice-secret" in line or "Once" in line for line in service.lines), "no secrets, no prompts"


def test_other_machines_need_keys() -> None:
    said = "(?s)ended with 2:.*--allow-anonymous"
    with pytest.raises(AssertionError, match=said), running_service("--host", "0.0.0.0"):
        pass


def test_a_full_queue_says_when_to_come_back() -> None:
    with running_service(*SETTINGS, "--max-queued-requests", "2") as service, httpx.Client(timeout=60) as client:
        body = {"prompt": "Once", "max_tokens": 300, "ignore_eos": True, "stream": True}
        url = f"{service.url}/v1/completions"
        with client.stream("POST", url, json=body) as one, client.stream("POST", url, json=body) as other:
            feeds = [one.iter_lines(), other.iter_lines()]  # Kept: a feed that is forgotten hangs up.
            for feed in feeds:
                next(feed)
            refused = ask(service.url, None)
            assert refused.status_code == 429 and refused.json()["error"]["code"] == "queue_full"
            assert int(refused.headers["Retry-After"]) >= 1


def test_metrics_page_and_live_feed(service: RunningService) -> None:
    assert ask(service.url, None).status_code == 200
    families = {
        family.name: family for family in text_string_to_metric_families(httpx.get(f"{service.url}/metrics").text)
    }
    for name in ("num_requests_running", "kv_cache_usage_perc", "time_to_first_token_seconds", "generation_tokens"):
        assert f"archerfish:{name}" in families
    page = httpx.get(service.url + "/")
    assert page.status_code == 200 and "default-src 'self'" in page.headers["Content-Security-Policy"]
    assert httpx.get(f"{service.url}/page/page.js").status_code == 200
    assert httpx.get(f"{service.url}/page/..%2fapp.py").status_code == 404
    with httpx.stream("GET", f"{service.url}/live", timeout=30) as feed:
        lines = (line.removeprefix("data: ") for line in feed.iter_lines() if line.startswith("data: "))
        snapshot, second = json.loads(next(lines)), json.loads(next(lines))
    assert snapshot["model"] == "perch" and snapshot["status"] == "ready" and snapshot["kv_map"]
    # The last minutes come once, with the first snapshot, and without one of them being there twice.
    times = [sample["time"] for sample in snapshot["history"]]
    assert times == sorted(set(times)) and times[-1] <= snapshot["time"] < second["time"]
    assert "history" not in second
    assert snapshot["history"][-1].keys() < snapshot.keys()
    assert httpx.get(f"{service.url}/health").headers["X-Request-Id"]
    named = httpx.get(f"{service.url}/version", headers={"X-Request-Id": "mine"})
    assert named.headers["X-Request-Id"] == "mine"
