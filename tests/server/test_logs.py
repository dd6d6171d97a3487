"""Log lines tell of each request by its id, and nothing of what was said; as JSON every single line is an object."""

import json
import logging
import re

import httpx

from archerfish.console import _JsonFormatter
from tests.server.running import RunningService, running_service
from tests.server.scripted_process import COMMAND

SECRET = "zanzibar"


def ask(service: RunningService, request_id: str, **more: object) -> httpx.Response:
    body = {"prompt": f"Once in {SECRET}", "max_tokens": 3, "user": "someone", **more}
    headers = {"X-Request-Id": request_id}
    return httpx.post(f"{service.url}/v1/completions", json=body, headers=headers, timeout=60)


def test_json() -> None:
    with running_service("--log-json", command=COMMAND) as service:
        check_cache_is_shown(service)
        assert ask(service, "well").status_code == 200
        assert ask(service, "badly", top_q=SECRET).status_code == 400
        httpx.get(f"{service.url}/nothing", headers={"X-Request-Id": "nowhere"})
        for request_id in ("well", "badly", "nowhere"):
            service.wait_for_line(f'"{request_id}"')
        assert service.stop() == 0
        service.wait_for_line("stopping")
    assert not any(SECRET in line for line in service.lines)
    lines = [json.loads(line) for line in service.lines]
    assert all(line["time"] > 1e9 and line["level"] == "info" for line in lines)
    told = {line["id"]: line for line in lines if "path" in line}
    assert [line for line in lines if "message" in line and "is ready" in line["message"]]
    assert {"status": 200, "method": "POST", "path": "/v1/completions", "user": "someone", "tokens": 3}.items() <= (
        told["well"].items()
    )
    assert told["well"]["prompt_tokens"] > 3 and told["well"]["finish"] == "length" and told["well"]["ttft_ms"] > 0
    assert (told["badly"]["status"], told["nowhere"]["status"]) == (400, 404)


def check_cache_is_shown(service: RunningService) -> None:
    """No step has been made yet, and the page shows the cache as large as it is."""
    with httpx.stream("GET", f"{service.url}/live", timeout=30) as feed:
        line = next(line for line in feed.iter_lines() if line.startswith("data: "))
    snapshot = json.loads(line.removeprefix("data: "))
    kv = snapshot["kv"]
    assert kv["num_blocks"] > 0 and kv == {"num_blocks": kv["num_blocks"], "free": kv["num_blocks"]} | {
        "cached": 0,
        "in_use": 0,
    }
    assert snapshot["steps"] == [] and snapshot["requests"]["running"] == 0


def test_text(service: RunningService) -> None:
    assert ask(service, "plainly").status_code == 200
    line = service.wait_for_line(r".*id=plainly.*")[0]
    number = r"\d+(\.\d+)?"
    counts = rf"user=someone prompt_tokens=\d+ cached_tokens=\d+ tokens=3 finish=length ttft_ms={number}"
    assert re.fullmatch(rf"POST /v1/completions 200 {number} ms id=plainly {counts}", line)
    assert not any(SECRET in line for line in service.lines)


def test_nobody_writes_lines_of_their_own(service: RunningService) -> None:
    assert ask(service, "forger", user="me\nPOST /forged 200").status_code == 200
    httpx.get(f"{service.url}/a%0AGET%20/forged", headers={"X-Request-Id": "wanderer"})
    for request_id in ("forger", "wanderer"):
        assert "\\n" in service.wait_for_line(f".*id={request_id}.*")[0]
    assert not any(line.startswith(("POST /forged", "GET /forged")) for line in service.lines)


def test_an_exception_is_one_object_on_one_line() -> None:
    try:
        raise ValueError("two\nlines")
    except ValueError as error:
        record = logging.getLogger("archerfish").makeRecord(
            "archerfish", logging.ERROR, "", 0, "it %s", ("failed",), (ValueError, error, error.__traceback__)
        )
    line = _JsonFormatter().format(record)
    told = json.loads(line)
    assert "\n" not in line
    assert (told["level"], told["message"]) == ("error", "it failed") and "two\nlines" in told["exception"]
