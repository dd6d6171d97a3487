"""Spans of requests, sent to an OpenTelemetry collector. Hears of requests and decides nothing; knows no text of them.

Names of attributes are those of OpenTelemetry's conventions for HTTP and generative AI; times that have no name there
are called as vLLM calls them.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from archerfish import __version__
from archerfish.errors import ConfigError
from archerfish.metrics.requests import Usage
from archerfish.metrics.timing import RequestTiming
from archerfish.request import FinishReason, Request

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span, Tracer

Clock = Callable[[], float]

_NEEDED = ("opentelemetry.sdk.trace", "opentelemetry.exporter.otlp.proto.http")
_LAST_SENDING = 5.0
"""Seconds that the collector may take when the service stops: one that is away must not hold that up."""
_OPERATIONS = {
    "/v1/chat/completions": "chat",
    "/v1/responses": "chat",
    "/v1/messages": "chat",
    "/v1/completions": "text_completion",
    "/v1/embeddings": "embeddings",
}


class Tracing:
    """Exports spans in the background. Spans are lost while the collector is unreachable; no request waits for it."""

    def __init__(self, endpoint: str, clock: Clock) -> None:
        """`clock` is the one that requests are timed with."""
        _check(endpoint)
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._clock = clock
        self._provider = _provider(endpoint)
        self._tracer: Tracer = self._provider.get_tracer("archerfish", __version__)
        self._propagator = TraceContextTextMapPropagator()

    def begin(self, method: str, headers: Mapping[str, str], request_id: str) -> "RequestTrace | None":
        """The span of an HTTP request that has just come; None for one that the sampler leaves out."""
        from opentelemetry.trace import SpanKind

        times = _WallTimes(self._clock)
        context = self._propagator.extract(headers)
        attributes = {"http.request.method": method, "archerfish.request_id": request_id}
        span = self._tracer.start_span(
            method, context, kind=SpanKind.SERVER, attributes=attributes, start_time=times.now()
        )
        return RequestTrace(self._tracer, span, method, times) if span.is_recording() else None

    def close(self) -> None:
        """Send what is left. Waits for the collector a while, so from an event loop it belongs in a thread."""
        sending = threading.Thread(target=self._provider.shutdown, daemon=True)
        sending.start()
        sending.join(_LAST_SENDING)


class RequestTrace:
    """One HTTP request: a span that ends when the response was sent and all answers are written, whichever is last."""

    def __init__(self, tracer: "Tracer", span: "Span", method: str, times: "_WallTimes") -> None:
        self._tracer = tracer
        self._span = span
        self._method = method
        self._times = times
        self._num_open = 0
        self._is_responded = False
        self._has_failed = False
        self._finish_reasons: list[str] = []
        self._usages: list[Usage] = []
        self._timings: list[RequestTiming] = []

    @property
    def trace_id(self) -> str:
        return f"{self._span.get_span_context().trace_id:032x}"

    def opened(self, requests: Sequence[Request], model: str) -> None:
        """The engine has been given these, all with the same parameters."""
        self._num_open += len(requests)
        params, tenant = requests[0].params, requests[0].tenant
        attributes: dict[str, str | int | float] = {
            "gen_ai.provider.name": "archerfish",
            "gen_ai.request.model": model,
            "gen_ai.response.model": model,
            "gen_ai.request.choice.count": params.n,
            "gen_ai.request.temperature": params.temperature,
            "gen_ai.request.top_p": params.top_p,
        }
        if params.max_tokens is not None:
            attributes["gen_ai.request.max_tokens"] = params.max_tokens
        if tenant:
            attributes["archerfish.key"] = tenant
        self._span.set_attributes(attributes)

    def answered(self, request: Request, timing: RequestTiming, usage: Usage, finish_reason: FinishReason) -> None:
        """One of those that were opened has ended."""
        self._usages.append(usage)
        self._timings.append(timing)
        self._finish_reasons.append(finish_reason.value)
        self._has_failed |= finish_reason is FinishReason.ERROR
        for name, start, end in (
            ("queue", timing.arrival_time, timing.scheduled_time),
            ("prefill", timing.scheduled_time, timing.first_token_time),
            ("decode", timing.first_token_time, timing.last_token_time),
        ):
            if start is not None and end is not None:
                self._child(name, request.external_id, start, end)
        self._num_open -= 1
        self._end_if_over()

    def responded(self, route: str | None, status: int) -> None:
        """The HTTP response has been sent, or its client is gone (status 0). Its answers may not have ended."""
        self._is_responded = True
        self._has_failed |= status >= 500
        if route is not None:
            self._span.update_name(f"{self._method} {route}")
            self._span.set_attribute("http.route", route)
            if route in _OPERATIONS:
                self._span.set_attribute("gen_ai.operation.name", _OPERATIONS[route])
        if status:
            self._span.set_attribute("http.response.status_code", status)
        self._end_if_over()

    def _child(self, name: str, request_id: str, start: float, end: float) -> None:
        from opentelemetry.trace import set_span_in_context

        context = set_span_in_context(self._span)
        attributes = {"archerfish.request_id": request_id}
        start_time, end_time = self._times.at(start), self._times.at(end)
        self._tracer.start_span(name, context, attributes=attributes, start_time=start_time).end(end_time)

    def _end_if_over(self) -> None:
        if not self._is_responded or self._num_open:
            return
        if self._has_failed:
            from opentelemetry.trace import StatusCode

            self._span.set_status(StatusCode.ERROR)
        if self._usages:
            self._record_answers()
        self._span.end(self._times.now())

    def _record_answers(self) -> None:
        """Record usage summed over all prompts, and the times of the first."""
        usages = self._usages
        self._span.set_attributes(
            {
                "gen_ai.response.finish_reasons": self._finish_reasons,
                "gen_ai.usage.input_tokens": sum(usage.num_prompt_tokens for usage in usages),
                "gen_ai.usage.cache_read.input_tokens": sum(usage.num_cached_tokens for usage in usages),
                "gen_ai.usage.output_tokens": sum(usage.num_generated_tokens for usage in usages),
            }
        )
        for name, seconds in (
            ("gen_ai.latency.time_to_first_token", [timing.ttft for timing in self._timings]),
            ("gen_ai.latency.time_in_queue", [timing.queue_time for timing in self._timings]),
        ):
            known = [value for value in seconds if value is not None]
            if known:
                self._span.set_attribute(name, min(known))


class _WallTimes:
    """Times of a request's clock as spans have them: nanoseconds since 1970."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._offset = time.time_ns() - int(clock() * 1e9)

    def at(self, seconds: float) -> int:
        return int(seconds * 1e9) + self._offset

    def now(self) -> int:
        return self.at(self._clock())


def _check(endpoint: str) -> None:
    parts = urlsplit(endpoint)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(
            f"--otlp-traces-endpoint {endpoint!r} is not a URL; write for example http://localhost:4318/v1/traces"
        )
    if not all(_is_installed(module) for module in _NEEDED):
        raise ConfigError("--otlp-traces-endpoint needs packages that are missing: pip install 'archerfish[tracing]'")


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # One of the packages around it.
        return False


def _provider(endpoint: str) -> "TracerProvider":
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    ours = Resource({"service.name": "archerfish", "service.version": __version__})
    # What OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES say comes last: it is said on purpose.
    provider = TracerProvider(resource=ours.merge(OTELResourceDetector().detect()), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint)))
    return provider
