"""Pages in a browser on this machine, against a service without keys: they can neither read it nor write to it."""

from collections.abc import Iterator
from urllib.parse import quote

import httpx
import pytest

from tests.server.running import RunningService, running_service
from tests.server.scripted_process import COMMAND

EVIL = "http://evil.example"
LINE = b'{"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "A"}}'
UPLOAD = {"file": ("a.jsonl", LINE), "purpose": (None, "batch")}
ASK = {"prompt": "Once", "max_tokens": 1}


@pytest.fixture(scope="module")
def keyless(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    with running_service("--data-dir", str(tmp_path_factory.mktemp("jobs")), command=COMMAND) as running:
        yield running


@pytest.fixture(scope="module")
def named(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    """One that a page of another origin may call."""
    data = str(tmp_path_factory.mktemp("jobs"))
    options = ("--cors-origins", "http://good.example", "--allowed-hosts", "box.example", "--data-dir", data)
    with running_service(*options, command=COMMAND) as running:
        yield running


def test_a_name_that_was_made_to_mean_this_machine_reads_nothing(keyless: RunningService) -> None:
    port = keyless.url.rpartition(":")[2]
    for host in ("evil.example", f"evil.example:{port}", "localhost.evil.example", "127.0.0.1.evil.example", "[evil]"):
        for path in ("/v1/files", "/v1/models", "/metrics", "/live", "/", "/usage", "/openapi.json"):
            reply = httpx.get(f"{keyless.url}{path}", headers={"Host": host}, timeout=60)
            assert reply.status_code == 403, (host, path, reply.text[:200])
    for host in (f"127.0.0.1:{port}", f"localhost:{port}", f"[::1]:{port}", "LOCALHOST"):
        assert httpx.get(f"{keyless.url}/v1/files", headers={"Host": host}, timeout=60).status_code == 200


@pytest.mark.parametrize("origin", [EVIL, "null", "http://localhost.evil.example", "http://127.0.0.1:1", "file://", ""])
def test_a_page_of_another_origin_writes_nothing(keyless: RunningService, origin: str) -> None:
    with httpx.Client(base_url=keyless.url, headers={"Origin": origin}, timeout=60) as client:
        assert client.post("/v1/files", files=UPLOAD).status_code == 403
        assert client.post("/v1/completions", json=ASK).status_code == 403
        assert client.delete("/v1/files/file-a").status_code == 403
        assert client.options("/v1/files", headers={"Access-Control-Request-Method": "POST"}).status_code == 403
    assert httpx.get(f"{keyless.url}/v1/files", timeout=60).json()["data"] == []


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", None])
def test_a_form_is_no_json(keyless: RunningService, kind: str | None) -> None:
    """Browsers send these kinds to other origins without asking first."""
    headers = {} if kind is None else {"Content-Type": kind}
    reply = httpx.post(f"{keyless.url}/v1/completions", content=b'{"prompt": "A"}', headers=headers, timeout=60)
    assert reply.status_code == 400


def test_the_service_s_own_page_and_programs_are_served(keyless: RunningService) -> None:
    own = {"Origin": keyless.url}
    assert httpx.post(f"{keyless.url}/v1/completions", json=ASK, headers=own, timeout=60).status_code == 200
    assert httpx.post(f"{keyless.url}/v1/completions", json=ASK, timeout=60).status_code == 200
    assert httpx.get(f"{keyless.url}/", timeout=60).status_code == 200


def test_origins_and_hosts_that_were_named_are_served_and_no_others(named: RunningService) -> None:
    good = {"Origin": "http://good.example"}
    preflight = {**good, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "content-type"}
    with httpx.Client(base_url=named.url, timeout=60) as client:
        allowed = client.options("/v1/completions", headers=preflight)
        assert allowed.status_code == 200 and allowed.headers["Access-Control-Allow-Origin"] == good["Origin"]
        reply = client.post("/v1/completions", json=ASK, headers=good)
        assert reply.status_code == 200 and reply.headers["Access-Control-Allow-Origin"] == good["Origin"]
        refused = client.post("/v1/completions", json=ASK, headers={"Origin": EVIL})
        assert refused.status_code == 403 and "Access-Control-Allow-Origin" not in refused.headers
        assert client.get("/v1/models", headers={"Host": "box.example"}).status_code == 200
        assert client.get("/v1/models", headers={"Host": "evil.example"}).status_code == 403


def test_a_file_s_name_is_only_a_name(keyless: RunningService) -> None:
    with httpx.Client(base_url=keyless.url, timeout=60) as client:
        for name in ("../../../etc/evil", "/etc/passwd", "..\\evil", "a" * 300, "a\r\nX: b", "\u202egnp.exe", " "):
            upload = {**UPLOAD, "file": (name, LINE)}
            reply = client.post("/v1/files", files=upload)
            assert reply.status_code in (200, 400), (name, reply.text)
            if reply.status_code == 200:
                file_id = reply.json()["id"]
                content = client.get(f"/v1/files/{file_id}/content")
                assert content.content == LINE and "X" not in content.headers
                assert client.delete(f"/v1/files/{file_id}").status_code == 200
        for file_id in ("../jobs.sqlite", "../../jobs.sqlite", "file-../../x", "file-\x00", "file-" + "a" * 5000):
            assert client.get(f"/v1/files/{quote(file_id, safe='')}").status_code in (400, 404)
