"""The records of a load test as plain data that can be saved and read again. Computes no metric.

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
"""Version of the file format, increased when older files can no longer be read unchanged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerTimes:
    """A request's times as the server measured them, in seconds. Only our own server reports them."""

    queue: float | None
    ttft: float | None
    tpot: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRecord:
    """One request: what was requested, what came and when."""

    index: int
    """Index in the order in which requests were planned."""
    planned: float
    """When it was to be sent. In a closed loop, when the request before it ended."""
    sent: float
    """When it was sent; opening a connection comes after this."""
    token_times: tuple[float, ...] = ()
    """One for each token of the answer. Tokens that arrived together have the same time."""
    first_visible: float | None = None
    """When the first text came that is not hidden reasoning."""
    ended: float
    """When the stream ended or failed."""
    num_prompt_tokens_requested: int | None = None
    """Number of prompt tokens as generated; None if they were not counted."""
    num_output_tokens_requested: int | None = None
    num_shared_tokens_requested: int | None = None
    """First tokens of the prompt that are shared with others by construction; None if that is unknown."""
    must_write_all: bool = False
    """Whether the output had to have exactly the requested length."""
    num_prompt_tokens: int | None = None
    """Number of prompt tokens that the server counted."""
    num_cached_tokens: int | None = None
    """Prompt tokens that the server did not have to compute."""
    num_output_tokens: int = 0
    counted_by_server: bool = False
    """Whether num_output_tokens is the server's count, rather than the number of events with text."""
    finish_reason: str | None = None
    status: int | None = None
    """Status of the HTTP response."""
    error: str | None = None
    server: ServerTimes | None = None

    @property
    def succeeded(self) -> bool:
        return self.error is None

    @property
    def num_input_tokens(self) -> int:
        """Number of prompt tokens counted by the server, or else by the client; 0 if neither did."""
        counts = (self.num_prompt_tokens, self.num_prompt_tokens_requested)
        return next((count for count in counts if count is not None), 0)

    @property
    def timing(self) -> RequestTiming:
        """The timing for computing latencies: arrival is when it was sent, the end when its last token came."""
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
        """Gaps between the times at which tokens arrived."""
        return [later - earlier for earlier, later in pairwise(self.token_times) if later > earlier]

    @property
    def outcome(self) -> FinishReason:
        if not self.succeeded:
            return FinishReason.ERROR
        return FinishReason.LENGTH if self.finish_reason == "length" else FinishReason.STOP


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """The load: what was sent, and when it was planned."""

    dataset: str
    arrivals: str
    """gamma, constant, ramp, trace or closed."""
    num_requests: int
    request_rate: float | None
    """Requests per second; None if all come at once or at the times of a trace. The last rate of a ramp."""
    burstiness: float | None
    """Shape of gamma arrivals; 1 is a Poisson process."""
    max_concurrency: int | None
    seed: int
    ignore_eos: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchTarget:
    """The server that the load was sent to."""

    url: str
    endpoint: str
    model: str
    is_archerfish: bool
    is_own: bool
    """Whether the server was started for this run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientHealth:
    """How busy and how late the measuring client was."""

    cpu_share: float
    """Share of one core."""
    median_lag: float
    """Seconds by which its event loop was late."""
    p99_lag: float
    largest_lag: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSample:
    """State that an Archerfish server reported at one time of the run; totals count from its start."""

    time: float
    num_running: int
    num_waiting: int
    batch_occupancy: float
    """Sequences in a step / maximum number of sequences, over the steps of the last minute."""
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
    """Settings of our server's engine that decide how much a step reads."""

    device: str
    dtype: str
    quantization: str
    kv_cache_dtype: str
    speculation: str
    weight_bytes: float
    kv_bytes_per_token: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something that limits what the figures mean."""

    name: str
    is_fatal: bool
    """Whether the figures do not describe the server."""
    what: str
    fix: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchRun:
    """The record of a load test."""

    format: Literal[2] = FORMAT
    kind: Literal["archerfish-bench-serve"] = "archerfish-bench-serve"
    version: str
    """Version of the package that measured."""
    label: str
    started_at: str
    """Date and time, UTC."""
    target: BenchTarget
    workload: Workload
    duration: float
    """Seconds from the start to the end of the last request."""
    client: ClientHealth
    findings: tuple[Finding, ...]
    requests: tuple[RequestRecord, ...]
    samples: tuple[ServerSample, ...] = ()
    server: ServerSettings | None = None
    """Settings of our server; None for others."""

    @property
    def is_valid(self) -> bool:
        return not any(finding.is_fatal for finding in self.findings)

    @property
    def succeeded(self) -> list[RequestRecord]:
        return [request for request in self.requests if request.succeeded]


def save_run(run: BenchRun, path: Path) -> None:
    """Write the run to a file, atomically."""
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
