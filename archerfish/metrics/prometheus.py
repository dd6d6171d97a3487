"""Our numbers under the names that dashboards know: vLLM's, with our prefix. Computes nothing itself."""

from collections.abc import Iterable, Iterator, Mapping
from math import inf

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from archerfish.metrics.aggregates import Histogram
from archerfish.metrics.engines import EngineMetrics
from archerfish.metrics.requests import OTHERS, RequestMetrics, TenantUsage
from archerfish.metrics.state import EngineInfo, EngineState
from archerfish.metrics.utilization import Utilization
from archerfish.request import FinishReason

PREFIX = "archerfish:"
INFO_LABELS = ("device", "dtype", "quantization", "kv_cache_dtype", "speculation")
_MOST_TENANTS = 1000
"""Each is a time series in whatever scrapes us."""

Labels = Mapping[str, str]
Values = Iterable[tuple[Labels, float]]
"""One for each set of labels."""


class Families:
    """Metrics being written out; all of them carry the same labels beside their own."""

    def __init__(self, labels: Labels) -> None:
        self.metrics: list[Metric] = []
        self._labels = labels

    def gauge(self, name: str, meaning: str, value: float | Values) -> None:
        self._add(GaugeMetricFamily(PREFIX + name, meaning), PREFIX + name, value)

    def counter(self, name: str, meaning: str, value: float | Values) -> None:
        self._add(CounterMetricFamily(PREFIX + name, meaning), f"{PREFIX}{name}_total", value)

    def histogram(self, name: str, meaning: str, histogram: Histogram) -> None:
        family = HistogramMetricFamily(PREFIX + name, meaning, labels=list(self._labels))
        buckets = [(_bound(bucket.bound), bucket.num_values) for bucket in histogram.buckets()]
        family.add_metric(list(self._labels.values()), buckets, histogram.sum)
        self.metrics.append(family)

    def _add(self, family: Metric, name: str, value: float | Values) -> None:
        values: Values = [({}, value)] if isinstance(value, (int, float)) else value
        for labels, number in values:
            family.add_sample(name, {**self._labels, **labels}, number)
        self.metrics.append(family)


def _bound(value: float) -> str:
    return "+Inf" if value == inf else str(value)


class _Scrape(Collector):
    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        yield from self._metrics


def text(metrics: Iterable[Metric]) -> bytes:
    """Metrics in Prometheus' text format."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Scrape(metrics))
    return generate_latest(registry)


# -- requests ---------------------------------------------------------------------------------------------------------


def add_requests(to: Families, requests: RequestMetrics, usage: Mapping[str, TenantUsage]) -> None:
    """`usage` is that of the tenants that are shown."""
    for name, meaning, histogram in (
        ("time_to_first_token_seconds", "From arrival to the first token, queueing included.", requests.ttft),
        (
            "time_to_first_visible_token_seconds",
            "From arrival to the first token that is no reasoning, of models whose reasoning is read.",
            requests.visible_ttft,
        ),
        ("inter_token_latency_seconds", "Between two tokens of an answer.", requests.itl),
        ("request_time_per_output_token_seconds", "Mean per token after the first, of a request.", requests.tpot),
        ("e2e_request_latency_seconds", "From arrival to the end.", requests.e2e),
        ("request_queue_time_seconds", "From arrival to the first step.", requests.queue_time),
        ("request_prefill_time_seconds", "From the first step to the first token.", requests.prefill_time),
        ("request_decode_time_seconds", "From the first token to the last.", requests.decode_time),
        ("request_inference_time_seconds", "From the first step to the last token.", requests.inference_time),
        ("request_prompt_tokens", "Prompt tokens of a request.", requests.prompt_tokens),
        ("request_generation_tokens", "Generated tokens of a request.", requests.generated_tokens),
    ):
        to.histogram(name, meaning, histogram)
    to.counter("prompt_tokens", "Prompt tokens of requests that began to answer.", requests.num_prompt_tokens)
    to.counter("prompt_tokens_cached", "Those of them that came from the prefix cache.", requests.num_cached_tokens)
    to.counter(
        "request_success",
        "Requests that ended, by why.",
        [({"finished_reason": reason.value}, requests.num_ended[reason]) for reason in FinishReason],
    )
    to.counter(
        "requests_started",
        "Requests that were accepted.",
        [({"endpoint": endpoint}, count) for endpoint, count in requests.num_started.items()],
    )
    to.counter(
        "request_slo",
        "Requests by objective and whether they met it; all is goodput.",
        [
            ({"slo": slo, "met": str(met).lower()}, requests.num_judged[slo, met])
            for slo in ("ttft", "tpot", "all")
            for met in (True, False)
        ],
    )
    _add_usage(to, usage)


def _add_usage(to: Families, usage: Mapping[str, TenantUsage]) -> None:
    shown: dict[str, TenantUsage] = {}
    for number, (tenant, account) in enumerate(usage.items()):
        shown.setdefault(tenant if number < _MOST_TENANTS else OTHERS, TenantUsage()).add(account)
    accounts = [({"tenant": tenant}, account) for tenant, account in shown.items()]
    to.counter("tenant_requests", "Requests that ended.", [(tenant, one.num_requests) for tenant, one in accounts])
    to.counter(
        "tenant_prompt_tokens",
        "Prompt tokens of requests that ended.",
        [(tenant, one.num_prompt_tokens) for tenant, one in accounts],
    )
    to.counter(
        "tenant_generation_tokens",
        "Generated tokens of requests that ended.",
        [(tenant, one.num_generated_tokens) for tenant, one in accounts],
    )


# -- the engine -------------------------------------------------------------------------------------------------------


def add_engine(to: Families, engine: EngineMetrics, now: float) -> None:
    _add_state(to, engine.state)
    for name, meaning, total in (
        ("generation_tokens", "Tokens drawn.", "num_generated_tokens"),
        ("computed_tokens", "Tokens that went through the model.", "num_computed_tokens"),
        ("num_preemptions", "Sequences that had to make way and start again.", "num_preemptions"),
        ("prefix_cache_queries", "Tokens looked up in the prefix cache.", "num_prefix_tokens_queried"),
        ("prefix_cache_hits", "Those of them that were found.", "num_prefix_tokens_hit"),
        ("engine_steps", "Forward passes.", "num_steps"),
        ("engine_busy_seconds", "Time spent in steps.", "busy_time"),
        ("spec_decode_num_drafts", "Sequences that had draft tokens, summed over steps.", "num_drafts"),
        ("spec_decode_num_draft_tokens", "Draft tokens that were verified.", "num_draft_tokens"),
        ("spec_decode_num_accepted_tokens", "Draft tokens that were accepted.", "num_accepted_tokens"),
        (
            "spec_decode_seconds",
            "Time spent on proposing draft tokens.",
            "drafting_time",
        ),
        (
            "spec_decode_seconds_saved",
            "Estimated time saved by draft tokens.",
            "saved_seconds",
        ),
        (
            "spec_decode_seconds_lost",
            "Estimated time lost to draft tokens.",
            "lost_seconds",
        ),
    ):
        to.counter(name, meaning, engine.total(total))
    to.counter(
        "spec_decode_num_accepted_tokens_per_pos",
        "Draft tokens that were accepted, by their position in a draft.",
        [({"position": str(position)}, count) for position, count in enumerate(engine.accepted_per_position)],
    )
    to.counter("engine_restarts", "Engines that ended and were started again.", engine.num_restarts)
    to.counter("estimated_flops", "Operations, from the model's shape.", _by_phase(engine.flops))
    to.counter("estimated_read_bytes", "Weights, keys and values read, likewise.", _by_phase(engine.bytes_read))
    to.histogram("iteration_tokens_total", "Tokens in a step.", engine.tokens_per_step)
    to.gauge("batch_occupancy", "Share of max_num_seqs that recent steps filled.", engine.occupancy(now))


def _add_state(to: Families, state: EngineState | None) -> None:
    """Zero where there is no engine."""
    num_running, num_waiting, num_tokens = 0, 0, 0
    free = cached = in_use = 0
    if state is not None:
        num_running, num_waiting, num_tokens = state.num_running, state.num_waiting, state.num_waiting_tokens
        free, cached, in_use = state.num_free_blocks, state.num_cached_blocks, state.num_blocks_in_use
    total = free + cached + in_use
    to.gauge("num_requests_running", "Sequences that run.", num_running)
    to.gauge("num_requests_waiting", "Sequences that wait.", num_waiting)
    to.gauge("num_waiting_tokens", "Tokens that waiting sequences have to be computed.", num_tokens)
    to.gauge("kv_cache_usage_perc", "Share of the KV cache's blocks in use, 0 to 1.", in_use / total if total else 0.0)
    to.gauge(
        "kv_cache_blocks",
        "Blocks of the KV cache.",
        [({"state": "free"}, free), ({"state": "cached"}, cached), ({"state": "in_use"}, in_use)],
    )


def add_info(to: Families, info: EngineInfo | None) -> None:
    """Add the settings that decide what a step reads, as labels of a gauge that is 1; nothing before they are known."""
    if info is None:
        return
    labels = {name: getattr(info, name) for name in INFO_LABELS}
    to.gauge("engine_info", "Settings of the engine, in labels.", [(labels, 1)])
    to.gauge("weight_bytes", "Bytes of the model's weights.", info.weight_bytes)
    to.gauge("kv_cache_bytes_per_token", "Bytes of the KV cache that a token takes.", info.kv_bytes_per_token)


def add_utilization(to: Families, utilization: Utilization | None) -> None:
    """Nothing where it is not known: a zero would be a claim."""
    if utilization is None:
        return
    prefill, decode = {"phase": "prefill"}, {"phase": "decode"}
    to.gauge(
        "mfu",
        "Operations as a share of the peak while steps run.",
        [(prefill, utilization.prefill_mfu), (decode, utilization.decode_mfu)],
    )
    to.gauge(
        "mbu",
        "Bytes read as a share of the peak while steps run.",
        [(prefill, utilization.prefill_mbu), (decode, utilization.decode_mbu)],
    )


def _by_phase(values: Mapping[str, float]) -> Values:
    return [({"phase": phase}, value) for phase, value in values.items()]
