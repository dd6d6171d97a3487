"""Spans as a collector gets them: one a request, its phases below it, in its caller's trace, no word of any prompt."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from typing import Any

import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from archerfish.errors import ConfigError
from archerfish.server import tracing
from archerfish.server.tracing import Tracing
from tests.server.running import RunningService, running_service
from tests.server.scripted_process import COMMAND

SECRET = "zanzibar"
TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"


@dataclass
class Collector:
    """What came in over HTTP."""

    bodies: list[bytes] = field(default_factory=list)

    @property
    def spans(self) -> list[Span]:
        requests = [ExportTraceServiceRequest.FromString(body) for body in self.bodies]
        groups = [group for request in requests for group in request.resource_spans]
        return [span for group in groups for scope in group.scope_spans for span in scope.spans]

    @property
    def resources(self) -> list[dict[str, Any]]:
        requests = [ExportTraceServiceRequest.FromString(body) for body in self.bodies]
        return [values(group.resource) for request in requests for group in request.resource_spans]

    def by_id(self) -> dict[str, Span]:
        """Spans of HTTP requests, by the id that the client gave."""
        return {values(one)["archerfish.request_id"]: one for one in self.spans if one.kind == Span.SPAN_KIND_SERVER}

    def below(self, span: Span) -> list[Span]:
        found = [one for one in self.spans if one.parent_span_id == span.span_id]
        return sorted(found, key=lambda one: (one.start_time_unix_nano, one.end_time_unix_nano))


def values(holder: Any) -> dict[str, Any]:
    """Attributes of a span or a resource."""
    found: dict[str, Any] = {}
    for one in holder.attributes:
        kind = one.value.WhichOneof("value")
        value = getattr(one.value, kind)
        found[one.key] = [item.string_value for item in value.values] if kind == "array_value" else value
    return found


@pytest.fixture(scope="module")
def collector() -> Iterator[tuple[Collector, str]]:
    collected = Collector()

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            collected.bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Receiver) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield collected, f"http://127.0.0.1:{server.server_port}/v1/traces"
        server.shutdown()
        thread.join()


def post(service: RunningService, path: str, request_id: str, body: dict[str, Any], parent: str = "") -> httpx.Response:
    headers = {"X-Request-Id": request_id} | ({"traceparent": parent} if parent else {})
    return httpx.post(f"{service.url}{path}", json=body, headers=headers, timeout=60)


@pytest.fixture(scope="module")
def traced(collector: tuple[Collector, str]) -> Collector:
    """What a service has sent when it was asked all kinds of things and then stopped."""
    collected, url = collector
    chat = {"messages": [{"role": "user", "content": f"Where is {SECRET}?"}], "max_tokens": 4, "ignore_eos": True}
    story = {"max_tokens": 3, "ignore_eos": True}
    with running_service("--otlp-traces-endpoint", url, command=COMMAND) as service:
        asked = {**chat, "temperature": 0.5, "top_p": 0.75}
        followed = post(service, "/v1/chat/completions", "followed", asked, f"00-{TRACE}-{PARENT}-01")
        assert followed.status_code == 200
        service.wait_for_line(f"id=followed trace_id={TRACE}")
        assert post(service, "/v1/chat/completions", "left out", chat, f"00-{TRACE}-{PARENT}-00").status_code == 200
        assert post(service, "/v1/messages", "streamed", {**chat, "stream": True}).status_code == 200
        prompts = [f"Once in {SECRET}", "Twice"]
        assert post(service, "/v1/completions", "two", {**story, "prompt": prompts}).status_code == 200
        assert post(service, "/v1/completions", "wrong", {"prompt": SECRET, "top_q": 1}).status_code == 400
        assert post(service, "/v1/none", "nowhere", {}).status_code == 404
        for path in ("/health", "/metrics", "/usage", "/version"):
            assert httpx.get(f"{service.url}{path}").status_code == 200
        later = {"input": SECRET, "max_output_tokens": 5, "ignore_eos": True, "background": True}
        begun = post(service, "/v1/responses", "background", later)
        assert begun.json()["status"] in ("queued", "in_progress")
        assert service.stop() == 0, "what is open may finish, and then all is sent"
    return collected


def test_a_request_is_a_span_in_the_trace_of_its_caller(traced: Collector) -> None:
    span = traced.by_id()["followed"]
    assert (span.trace_id.hex(), span.parent_span_id.hex()) == (TRACE, PARENT)
    assert span.name == "POST /v1/chat/completions"
    told = values(span)
    assert told.pop("gen_ai.usage.input_tokens") > 5
    assert 0 < told.pop("gen_ai.latency.time_in_queue") < told.pop("gen_ai.latency.time_to_first_token")
    assert told.pop("gen_ai.usage.cache_read.input_tokens") >= 0
    assert told == {
        "archerfish.request_id": "followed",
        "http.request.method": "POST",
        "http.route": "/v1/chat/completions",
        "http.response.status_code": 200,
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "archerfish",
        "gen_ai.request.model": "perch",
        "gen_ai.response.model": "perch",
        "gen_ai.request.choice.count": 1,
        "gen_ai.request.max_tokens": 4,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_p": 0.75,
        "gen_ai.response.finish_reasons": ["length"],
        "gen_ai.usage.output_tokens": 4,
    }
    assert all(resource["service.name"] == "archerfish" for resource in traced.resources)


def test_its_phases_follow_each_other(traced: Collector) -> None:
    for name in ("followed", "streamed", "background"):
        span = traced.by_id()[name]
        phases = traced.below(span)
        assert [phase.name for phase in phases] == ["queue", "prefill", "decode"]
        times = [span.start_time_unix_nano, phases[0].start_time_unix_nano]
        for phase, following in pairwise(phases):
            assert phase.end_time_unix_nano == following.start_time_unix_nano
            times.append(phase.end_time_unix_nano)
        times += [phases[-1].end_time_unix_nano, span.end_time_unix_nano]
        assert times == sorted(times), "within the request, in their order"
        assert all(phase.trace_id == span.trace_id for phase in phases)


def test_two_prompts_are_one_request(traced: Collector) -> None:
    span = traced.by_id()["two"]
    told, phases = values(span), traced.below(span)
    assert told["gen_ai.operation.name"] == "text_completion"
    assert told["gen_ai.usage.output_tokens"] == 6 and told["gen_ai.response.finish_reasons"] == ["length"] * 2
    assert len(phases) == 6 and {values(phase)["archerfish.request_id"] for phase in phases} == {"two-0", "two-1"}


def test_an_answer_in_the_background_ends_its_span(traced: Collector) -> None:
    told = values(traced.by_id()["background"])
    assert told["gen_ai.usage.output_tokens"] == 5 and told["http.response.status_code"] == 200


def test_refused_requests_have_spans_without_answers(traced: Collector) -> None:
    wrong, nowhere = (traced.by_id()[name] for name in ("wrong", "nowhere"))
    assert values(wrong)["http.response.status_code"] == 400 and "gen_ai.usage.input_tokens" not in values(wrong)
    assert wrong.status.code == Status.STATUS_CODE_UNSET, "the client's mistake is no failure of the service"
    assert nowhere.name == "POST" and "http.route" not in values(nowhere)
    assert len({span.trace_id for span in (wrong, nowhere)}) == 2, "without a caller's trace each has its own"


def test_what_is_left_out(traced: Collector) -> None:
    assert set(traced.by_id()) == {"followed", "streamed", "two", "wrong", "nowhere", "background"}
    assert not any(SECRET.encode() in body for body in traced.bodies), "no prompts"


def test_what_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "_NEEDED", ("opentelemetry.no.such.module",))
    with pytest.raises(ConfigError, match=r"--otlp-traces-endpoint .* pip install 'archerfish\[tracing\]'"):
        Tracing("http://localhost:4318/v1/traces", lambda: 0.0)


@pytest.mark.parametrize("endpoint", ["localhost:4318", "grpc://localhost:4317", "http://", "/v1/traces"])
def test_an_endpoint_that_is_no_url(endpoint: str) -> None:
    with pytest.raises(ConfigError, match=r"is not a URL; write for example http://localhost:4318/v1/traces"):
        Tracing(endpoint, lambda: 0.0)


def test_nothing_is_imported_where_nothing_is_traced() -> None:
    code = "import sys, archerfish.server.serve; print([name for name in sys.modules if 'opentelemetry.sdk' in name])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
