"""What a load test gave, request by request, as plain data that can be saved and read again. Computes no metric.

All times are seconds since the run began, by the client's monotonic clock.
"""

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Literal

import msgspec

from archerfish.errors import ConfigError
from archerfish.metrics.speculation import SpeculationTotals
from archerfish.metrics.timing import RequestTiming
from archerfish.request import FinishReason

FORMAT: Literal[2] = 2
"""Raised whenever files of before can no longer be read as they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerTimes:
    """How long a request took as the server saw it, in seconds. Only our own server tells."""

    queue: float | None
    ttft: float | None
    tpot: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRecord:
    """One request: what was asked for, what came and when."""

    index: int
    """In the order in which the requests were planned."""
    planned: float
    """When it was to be sent. In a closed loop, when the one before it made room."""
    sent: float
    """When it was sent; a connection that had to be made comes after this."""
    token_times: tuple[float, ...] = ()
    """One for each token of the answer. Tokens that arrived together have the same time."""
    first_visible: float | None = None
    """When the first text came that is no hidden reasoning."""
    ended: float
    """When the stream was over or had failed."""
    num_prompt_tokens_requested: int | None = None
    """Number of prompt tokens as generated; None where they were not counted."""
    num_output_tokens_requested: int | None = None
    num_shared_tokens_requested: int | None = None
    """First tokens of the prompt that others were made to begin with, too; None where prompts are as they are."""
    must_write_all: bool = False
    """Whether the answer was to be exactly as long as asked for, and not at most."""
    num_prompt_tokens: int | None = None
    """As the server counted."""
    num_cached_tokens: int | None = None
    """Those of them that the server did not have to compute."""
    num_output_tokens: int = 0
    counted_by_server: bool = False
    """Whether num_output_tokens is the server's count, and not one of events that brought text."""
    finish_reason: str | None = None
    status: int | None = None
    """Of the HTTP response."""
    error: str | None = None
    server: ServerTimes | None = None

    @property
    def succeeded(self) -> bool:
        return self.error is None

    @property
    def num_input_tokens(self) -> int:
        """The server's count, or else ours; 0 where there is neither."""
        counts = (self.num_prompt_tokens, self.num_prompt_tokens_requested)
        return next((count for count in counts if count is not None), 0)

    @property
    def timing(self) -> RequestTiming:
        """As latencies are defined on: arrival is when it was sent, the end when its last token came."""
        times = self.token_times
        last = times[-1] if times else None
        return RequestTiming(
            self.sent,
            first_token_time=times[0] if times else None,
            last_token_time=last,
            finished_time=last,
            num_generated_tokens=len(times),
        )

    @property
    def gaps(self) -> list[float]:
        """Between two moments at which tokens arrived."""
        return [later - earlier for earlier, later in pairwise(self.token_times) if later > earlier]

    @property
    def outcome(self) -> FinishReason:
        if not self.succeeded:
            return FinishReason.ERROR
        return FinishReason.LENGTH if self.finish_reason == "length" else FinishReason.STOP


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What was sent, and when it was meant to be."""

    dataset: str
    arrivals: str
    """gamma, constant, ramp, trace or closed."""
    num_requests: int
    request_rate: float | None
    """Requests per second; None where all come at once or a trace says when. Of a ramp, the last."""
    burstiness: float | None
    """Of gamma arrivals; 1 is a Poisson process."""
    max_concurrency: int | None
    seed: int
    ignore_eos: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchTarget:
    """Where it was sent."""

    url: str
    endpoint: str
    model: str
    is_archerfish: bool
    is_own: bool
    """Whether the server was started for this run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientHealth:
    """How the measuring client itself was."""

    cpu_share: float
    """Of one core."""
    median_lag: float
    """Seconds by which its event loop was late."""
    p99_lag: float
    largest_lag: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSample:
    """State that an Archerfish server reported at a moment of the run; totals count from its start."""

    time: float
    num_running: int
    num_waiting: int
    batch_occupancy: float
    """Sequences in a step / most there may be, over the steps of the last minute."""
    kv_cache_usage: float
    num_steps: int
    busy_seconds: float
    num_computed_tokens: int
    num_generated_tokens: int
    num_prefix_tokens_queried: int
    num_prefix_tokens_hit: int
    num_preemptions: int
    prefill_flops: float
    decode_flops: float
    prefill_bytes: float
    decode_bytes: float
    peak_flops: float | None = None
    peak_bandwidth: float | None = None
    energy_joules: float | None = None
    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    accepted_per_position: tuple[int, ...] = ()
    drafting_seconds: float = 0.0
    saved_seconds: float = 0.0
    lost_seconds: float = 0.0

    @property
    def speculation_totals(self) -> SpeculationTotals:
        return SpeculationTotals(
            self.num_drafts,
            self.num_draft_tokens,
            self.num_accepted_tokens,
            self.accepted_per_position,
            self.drafting_seconds,
            self.saved_seconds - self.lost_seconds,
            self.num_generated_tokens,
            self.busy_seconds,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """What our server says of its engine: the settings that decide how much a step reads."""

    device: str
    dtype: str
    quantization: str
    kv_cache_dtype: str
    speculation: str
    weight_bytes: float
    kv_bytes_per_token: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something that makes the figures less than they seem."""

    name: str
    is_fatal: bool
    """Whether the figures say nothing about the server as it is."""
    what: str
    fix: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchRun:
    """A load test."""

    format: Literal[2] = FORMAT
    kind: Literal["archerfish-bench-serve"] = "archerfish-bench-serve"
    version: str
    """Of the package that measured."""
    label: str
    started_at: str
    """Date and time, UTC."""
    target: BenchTarget
    workload: Workload
    duration: float
    """From the beginning to the end of the last request."""
    client: ClientHealth
    findings: tuple[Finding, ...]
    requests: tuple[RequestRecord, ...]
    samples: tuple[ServerSample, ...] = ()
    server: ServerSettings | None = None
    """None for other servers than ours."""

    @property
    def is_valid(self) -> bool:
        return not any(finding.is_fatal for finding in self.findings)

    @property
    def succeeded(self) -> list[RequestRecord]:
        return [request for request in self.requests if request.succeeded]


def save_run(run: BenchRun, path: Path) -> None:
    """Written whole or not at all."""
    partial = path.with_name(path.name + ".partial")
    try:
        partial.write_bytes(msgspec.json.format(msgspec.json.encode(run), indent=1))
        partial.replace(path)
    except OSError as error:
        raise ConfigError(f"the result cannot be written to {path}: {error.strerror}") from error


def load_run(path: Path) -> BenchRun:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    try:
        return msgspec.json.decode(data, type=BenchRun)
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        raise ConfigError(
            f"{path} is no result of archerfish bench serve in format {FORMAT} ({error}); run the benchmark again"
        ) from error
