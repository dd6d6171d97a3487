"""Adds up the cost of steps, prefill and decode separately, and names what bounds each. Knows no workload."""

from dataclasses import dataclass

from archerfish.arch.cost import StepCost
from archerfish.machine.peak import Peak
from archerfish.metrics.state import LastStep, record_step
from archerfish.metrics.utilization import Work, prefill_share


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """The work and time of one phase, compared with the peak of the machine."""

    num_tokens: int
    seconds: float
    """Time of the phase. A mixed step's time is divided by what each phase would take at the peak."""
    host_seconds: float
    """Time spent planning and committing, not computing."""
    flops: float
    num_bytes: float
    tokens_per_second: float | None
    """Tokens per second; like the next two, None if nothing was computed."""
    mfu: float | None
    """Share of the peak's operations while the phase ran."""
    mbu: float | None
    """Share of the peak's bandwidth. Above 1 if weights stay in the caches."""
    limit: str
    """What takes most of the time, in words."""


@dataclass(slots=True)
class _Sum:
    num_tokens: int = 0
    seconds: float = 0.0
    host_seconds: float = 0.0
    flops: float = 0.0
    num_bytes: float = 0.0

    def add(self, num_tokens: int, flops: float, num_bytes: float) -> None:
        self.num_tokens += num_tokens
        self.flops += flops
        self.num_bytes += num_bytes

    def add_time(self, seconds: float, host_seconds: float) -> None:
        self.seconds += seconds
        self.host_seconds += host_seconds

    def phase(self, peak: Peak) -> Phase:
        computing, reading = self.flops / peak.flops, self.num_bytes / peak.bandwidth
        return Phase(
            num_tokens=self.num_tokens,
            seconds=self.seconds,
            host_seconds=self.host_seconds,
            flops=self.flops,
            num_bytes=self.num_bytes,
            tokens_per_second=self.num_tokens / self.seconds if self.seconds else None,
            mfu=computing / self.seconds if self.seconds else None,
            mbu=reading / self.seconds if self.seconds else None,
            limit=binding_limit(self.seconds, self.host_seconds, computing, reading),
        )


class StepMeter:
    """Adds up steps by phase."""

    def __init__(self, cost: StepCost, peak: Peak) -> None:
        self._cost = cost
        self._peak = peak
        self._prefill = _Sum()
        self._decode = _Sum()

    def add(self, step: LastStep, host_seconds: float) -> None:
        """Add a step, `host_seconds` of which its executor did not take."""
        record = record_step(step, self._cost)
        self._prefill.add(record.prefill_tokens, record.prefill_flops, record.prefill_bytes)
        self._decode.add(record.decode_tokens, record.decode_flops, record.decode_bytes)
        work = Work(
            prefill_flops=record.prefill_flops,
            decode_flops=record.decode_flops,
            prefill_bytes=record.prefill_bytes,
            decode_bytes=record.decode_bytes,
        )
        share = prefill_share(work, self._peak)
        assert share is not None, "a step computes something"
        self._prefill.add_time(step.seconds * share, host_seconds * share)
        self._decode.add_time(step.seconds * (1 - share), host_seconds * (1 - share))

    @property
    def prefill(self) -> Phase:
        return self._prefill.phase(self._peak)

    @property
    def decode(self) -> Phase:
        return self._decode.phase(self._peak)


def binding_limit(seconds: float, host: float, computing: float, reading: float) -> str:
    """Return what takes most of the time: the host, operations or bytes at the peak.

    If none of them does, the phase is overhead-bound: kernels are too slow or too small for the machine.
    """
    if not seconds:
        return "nothing was computed"
    least = max(computing, reading)
    rest = seconds - host - least
    if host >= max(least, rest):
        return f"host-bound: planning takes {host / seconds:.0%} of the time"
    bound = "compute-bound" if computing >= reading else "bandwidth-bound"
    if least >= rest:
        return bound
    return f"overhead-bound: at the peak it would take {least / seconds:.0%} of the time and be {bound}"
