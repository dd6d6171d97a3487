"""How much of what a device can do was used: operations (MFU) and bytes (MBU), prefill and decode apart."""

from dataclasses import dataclass

from archerfish.machine.peak import Peak


@dataclass(frozen=True, slots=True)
class Utilization:
    """Shares of the peak while steps ran; prefill and decode add up to the whole."""

    prefill_mfu: float
    decode_mfu: float
    prefill_mbu: float
    decode_mbu: float

    @property
    def mfu(self) -> float:
        return self.prefill_mfu + self.decode_mfu

    @property
    def mbu(self) -> float:
        return self.prefill_mbu + self.decode_mbu


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What was computed in some time, from the model's shape."""

    prefill_flops: float
    decode_flops: float
    prefill_bytes: float
    decode_bytes: float


def utilization(work: Work, seconds: float, peak: Peak) -> Utilization:
    flops, bandwidth = seconds * peak.flops, seconds * peak.bandwidth
    return Utilization(
        work.prefill_flops / flops,
        work.decode_flops / flops,
        work.prefill_bytes / bandwidth,
        work.decode_bytes / bandwidth,
    )


def prefill_share(work: Work, peak: Peak) -> float | None:
    """Prefill's part of the time that a perfect device would take; None if there was nothing to do.

    Each phase takes what its roof demands, operations or bytes, whichever is longer.
    """
    prefill = max(work.prefill_flops / peak.flops, work.prefill_bytes / peak.bandwidth)
    decode = max(work.decode_flops / peak.flops, work.decode_bytes / peak.bandwidth)
    return prefill / (prefill + decode) if prefill + decode > 0 else None
