"""Options of a load test, apart from its dataset. Knows no server."""

import math
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from archerfish.bench.serve.client import CHAT, COMPLETIONS
from archerfish.errors import ConfigError

_SEEDS = 2**31
"""Random seeds are smaller than this: short enough to type."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOptions:
    """The server, the requests and their timing, validated on creation."""

    model: str | None = None
    """Model to request, by default the first that the server lists. Without --url: the model to serve, by default \
perch."""
    backend: Literal["openai", "vllm", "openai-chat"] = "openai"
    """API to use where --endpoint is not given: completions (openai, vllm) or chat completions (openai-chat)."""
    endpoint: str | None = None
    """Path to send requests to: /v1/completions or /v1/chat/completions."""
    tokenizer: str | None = None
    """Tokenizer that measures prompts: a directory, bundled model or hub name. By default the model's own if it is \
served here; without one, a word counts as a token and the server's counts are reported."""
    server_args: str | None = None
    """Without --url: arguments for archerfish serve, quoted as one, such as '--max-num-seqs 64'."""
    num_prompts: int = 100
    """Number of requests."""
    request_rate: str = "inf"
    """Requests per second; inf sends all at once, or as --max-concurrency allows."""
    burstiness: float = 1.0
    """Burstiness of gamma arrivals: 1 is a Poisson process; lower is burstier, higher more regular."""
    arrivals: Literal["gamma", "constant", "trace"] | None = None
    """Arrival process: gamma (see --burstiness), constant gaps, or the recorded times of a trace. By default trace \
for a trace without --request-rate, else gamma."""
    time_scale: float = 1.0
    """Factor on the times of a trace: 2 replays it at half speed."""
    ramp_up_strategy: Literal["linear", "exponential"] | None = None
    """Ramp the request rate from --ramp-up-start-rps to --ramp-up-end-rps."""
    ramp_up_start_rps: float | None = None
    """Requests per second at the start of the ramp."""
    ramp_up_end_rps: float | None = None
    """Requests per second at the end of the ramp."""
    max_concurrency: int | None = None
    """Maximum number of open requests."""
    num_warmups: int = 1
    """Small requests to send before measuring."""
    seed: int = field(default_factory=lambda: secrets.randbelow(_SEEDS))
    """Seed of prompts and arrival times. By default random and reported, so that the server's prefix cache holds no \
prompt of an earlier run."""
    ignore_eos: bool | None = None
    """Request outputs of full length. By default on where the dataset sets lengths: random, prefix_repetition and \
traces."""
    temperature: float | None = 0.0
    """Sampling temperature to request; none leaves it to the server."""
    extra_body: Mapping[str, Any] = field(default_factory=dict)
    """JSON object that overrides fields of every request body; null removes one."""
    header: tuple[str, ...] = ()
    """Header to send with every request, as NAME=VALUE. OPENAI_API_KEY in the environment is sent as API key."""
    timeout: float = 600.0
    """Seconds after which a request counts as failed."""
    label: str | None = None
    """Name of the run in its result, by default model and rate."""

    def __post_init__(self) -> None:
        for name in ("num_prompts", "burstiness", "time_scale", "timeout", "max_concurrency", "rate"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ConfigError(f"--{name.replace('rate', 'request_rate').replace('_', '-')} must be more than 0")
        if self.num_warmups < 0 or self.seed < 0:
            raise ConfigError("--num-warmups and --seed must not be negative")
        ends = (self.ramp_up_start_rps, self.ramp_up_end_rps)
        if any(end is None or not end > 0 for end in ends) if self.ramp_up_strategy else any(ends):
            raise ConfigError(
                "a ramp needs --ramp-up-strategy, --ramp-up-start-rps and --ramp-up-end-rps, both more than 0"
            )
        if self.ramp_up_strategy and (self.rate is not None or self.arrivals in ("constant", "trace")):
            raise ConfigError("a ramp has rates and gaps of its own: leave out --request-rate and --arrivals")
        if self.arrivals == "constant" and self.rate is None:
            raise ConfigError("--arrivals constant needs a --request-rate")
        if self.arrivals == "trace" and self.rate is not None:
            raise ConfigError("a trace has times of its own: leave out --request-rate, or --arrivals trace")
        if not self.path.endswith((COMPLETIONS, CHAT)):
            raise ConfigError(f"--endpoint: {self.path!r} must end with {COMPLETIONS} or {CHAT}")

    @property
    def rate(self) -> float | None:
        """Requests per second; None without a bound."""
        try:
            rate = float(self.request_rate)
        except ValueError:
            rate = math.nan
        if math.isnan(rate):
            raise ConfigError(f"--request-rate: {self.request_rate!r} is neither a number nor inf")
        return None if math.isinf(rate) and rate > 0 else rate

    @property
    def path(self) -> str:
        """Path that requests are sent to."""
        return self.endpoint or (CHAT if self.backend == "openai-chat" else COMPLETIONS)

    @property
    def headers(self) -> dict[str, str]:
        headers = {}
        for text in self.header:
            name, equals, value = text.partition("=")
            if not name or not equals:
                raise ConfigError(f"--header: {text!r} must look like NAME=VALUE")
            headers[name] = value
        return headers
