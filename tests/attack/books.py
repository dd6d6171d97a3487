"""What a service holds for its requests, as seen from outside: after any attack, nothing."""

import time

import httpx

from tests.server.running import RunningService

_PATIENCE = 60.0


def gauge(service: RunningService, name: str, headers: dict[str, str]) -> float:
    text = httpx.get(f"{service.url}/metrics", headers=headers, timeout=60).text
    found = [line for line in text.splitlines() if line.startswith(f"archerfish:{name}{{")]
    assert found, f"there is no metric {name}"
    return sum(float(line.split()[-1]) for line in found)


def check_books_empty(service: RunningService, headers: dict[str, str]) -> None:
    """Soon nothing runs or waits, the KV cache is not in use, and the service is live and ready."""
    end = time.monotonic() + _PATIENCE
    names = ("num_requests_running", "num_requests_waiting", "num_open_answers")
    while any(gauge(service, name, headers) for name in names):
        assert time.monotonic() < end, "requests are still open"
    assert gauge(service, "kv_cache_usage_perc", headers) == 0
    for path in ("/health/live", "/health/ready"):
        reply = httpx.get(f"{service.url}{path}", timeout=60)
        assert reply.status_code == 200, reply.text
    ask = {"prompt": "Once", "max_tokens": 2}
    assert httpx.post(f"{service.url}/v1/completions", json=ask, headers=headers, timeout=60).status_code == 200
