"""Keys, origins and limits decide what is answered, and each request can be watched."""

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from archerfish.errors import ConfigError
from archerfish.server.middleware import Origins
from tests.server.conftest import SETTINGS
from tests.server.running import RunningService, running_service
from tests.server.scripted import scripted_service
from tests.server.scripted_process import COMMAND

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
    options = ("--key-file", str(file), "--data-dir", str(tmp_path / "jobs"))
    with running_service(*options, command=COMMAND) as service:
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


@pytest.mark.parametrize(
    ("host", "origin"),
    [
        ("localhost:8000", None),
        ("LOCALHOST", None),
        ("127.0.0.1:8000", None),
        ("[::1]:8000", None),
        ("192.168.1.7", None),  # An address is no name that could be made to mean this machine.
        (None, None),
        ("localhost:8000", "http://localhost:8000"),
        ("models.example", "http://models.example"),
        ("localhost:8000", "https://page.example"),
    ],
)
def test_what_may_call(host: str | None, origin: str | None) -> None:
    origins = Origins("127.0.0.1", "models.example", "https://page.example")
    assert origins.problem(host, origin) is None


@pytest.mark.parametrize(
    ("host", "origin", "said"),
    [
        ("evil.example", None, "--allowed-hosts"),
        ("evil.example:8000", "http://evil.example:8000", "--allowed-hosts"),
        ("localhost.evil.example", None, "--allowed-hosts"),
        ("127.0.0.1.evil.example", None, "--allowed-hosts"),
        ("", None, "--allowed-hosts"),
        ("localhost:8000", "http://evil.example", "--cors-origins"),
        ("localhost:8000", "http://localhost:9000", "--cors-origins"),
        ("localhost:8000", "null", "--cors-origins"),
        ("localhost:8000", "http://localhost:8000.evil.example", "--cors-origins"),
        ("localhost:8000", "", "--cors-origins"),
    ],
)
def test_what_may_not(host: str, origin: str | None, said: str) -> None:
    problem = Origins("127.0.0.1").problem(host, origin)
    assert problem is not None and said in problem


@given(st.text(), st.text())
def test_any_headers_are_judged(host: str, origin: str) -> None:
    Origins("127.0.0.1").problem(host, origin)


def test_everything_may_be_allowed() -> None:
    assert Origins("127.0.0.1", "*", "*").problem("any.example", "http://any.example") is None


def test_a_url_is_no_host_name() -> None:
    with pytest.raises(ConfigError, match=r"--allowed-hosts: 'http://a.example' is not a host name"):
        Origins("127.0.0.1", "http://a.example")


def test_rebinding_and_forms_of_other_sites_are_refused() -> None:
    async def story() -> None:
        async with scripted_service() as (_, client, _):
            rebound = {"Host": "evil.example", "Origin": "http://evil.example"}
            for path in ("/v1/files", "/v1/models", "/metrics", "/", "/health"):
                reply = await client.get(path, headers=rebound)
                assert reply.status_code == 403 and reply.json()["error"]["code"] == "origin_not_allowed"
            form = {"file": ("a.jsonl", b"{}")}
            foreign = {"Origin": "http://evil.example"}
            reply = await client.post("/v1/files", files=form, data={"purpose": "batch"}, headers=foreign)
            assert reply.status_code == 403
            assert (await client.get("/v1/models")).status_code == 200

    asyncio.run(story())


def test_a_key_takes_the_place_of_these_checks() -> None:
    async def story() -> None:
        async with scripted_service(api_key=("secret",)) as (_, client, _):
            headers = {"Host": "models.example", "Origin": "http://models.example"}
            assert (await client.get("/v1/models", headers=headers)).status_code == 401
            headers["Authorization"] = "Bearer secret"
            assert (await client.get("/v1/models", headers=headers)).status_code == 200

    asyncio.run(story())
