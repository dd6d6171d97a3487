"""Proposes smaller number formats and speculation, with the effect that the figures of a run predict."""

from collections.abc import Iterator
from dataclasses import dataclass

from archerfish.bench.serve.records import BenchRun, ServerSettings
from archerfish.bench.serve.summary import reported_peak, work_between
from archerfish.config.numbers import format_bytes
from archerfish.machine.peak import Peak
from archerfish.metrics.utilization import Work

_WORTH_NAMING = 0.05
"""Least share of the time in steps that a format must save."""
_FEW_TOKENS = 8.0
"""Tokens in a step up to which speculation shares what a step costs besides arithmetic and memory."""
_BYTES = {"float32": 4.0, "bfloat16": 2.0, "float16": 2.0, "int8": 1.0, "fp8": 1.0}
"""Bytes of a number; those of scales are neglected."""


@dataclass(frozen=True, slots=True)
class Advice:
    """A setting worth trying."""

    setting: str
    change: str
    why: str


@dataclass(frozen=True, slots=True)
class Remedies:
    """What a server's settings and counters say of formats that it does not use yet."""

    settings: ServerSettings
    peak: Peak
    work: Work
    num_steps: int
    num_tokens: int
    busy_seconds: float

    @classmethod
    def of(cls, run: BenchRun) -> "Remedies | None":
        """Return None where the server did not say enough of itself."""
        if run.server is None or len(run.samples) < 2:
            return None
        first, last = run.samples[0], run.samples[-1]
        peak, busy = reported_peak(last), last.busy_seconds - first.busy_seconds
        if peak is None or busy <= 0 or last.num_steps <= first.num_steps:
            return None
        return cls(
            run.server,
            peak,
            work_between(first, last),
            last.num_steps - first.num_steps,
            last.num_computed_tokens - first.num_computed_tokens,
            busy,
        )

    def against_reading(self) -> list[Advice]:
        """Return what lets steps read less: speculation, which is lossless, then formats by how much they save."""
        saving = [*self._smaller_weights(), *self._smaller_cache()]
        ranked = sorted(saving, key=lambda pair: -pair[0])
        return [*self._speculation(), *(advice for share, advice in ranked if share >= _WORTH_NAMING)]

    def against_computing(self) -> list[Advice]:
        """Return what raises the machine's peak."""
        if self.settings.device == "cpu" or self.settings.quantization != "none":
            return []
        return [Advice("--quantization", "fp8 (lossy)", "8-bit GEMMs have up to 2 x the peak of 16-bit ones")]

    def against_full_cache(self) -> list[Advice]:
        """Return what makes the KV cache hold more tokens."""
        settings = self.settings
        advice = []
        if (ratio := self._cache_ratio()) > 1:
            name = _cache_format(settings)
            advice.append(
                Advice("--kv-cache-dtype", f"{name} (lossy)", f"about {ratio:.1f} x as many tokens in the KV cache")
            )
        if (freed := self._freed_by_weights()) > 0:
            tokens = freed / settings.kv_bytes_per_token
            why = f"{format_bytes(freed)} less weights: about {tokens:,.0f} more tokens in the KV cache"
            advice.append(Advice("--quantization", "int8 (lossy)", why))
        return advice

    def against_overhead(self) -> list[Advice]:
        """Return what gets more tokens out of a step."""
        return list(self._speculation()) if self.num_tokens <= _FEW_TOKENS * self.num_steps else []

    def _smaller_weights(self) -> Iterator[tuple[float, Advice]]:
        """Yield 8-bit weights with the share of the time in steps that they save."""
        freed = self._freed_by_weights()
        if freed <= 0:
            return
        # Of experts a step reads only those that were chosen: weights are never more than all that was read.
        saved = self._weight_share * self._num_bytes * freed / self.settings.weight_bytes
        share = self._share_of_time(saved)
        after = format_bytes(self.settings.weight_bytes - freed)
        why = f"weights of {after} instead of {format_bytes(self.settings.weight_bytes)}: {_less_time(share)}"
        yield share, Advice("--quantization", "int8 (lossy)", why)

    def _smaller_cache(self) -> Iterator[tuple[float, Advice]]:
        """Yield an 8-bit KV cache with the share of the time in steps that it saves."""
        ratio = self._cache_ratio()
        if ratio <= 1:
            return
        share = self._share_of_time((1 - self._weight_share) * self._num_bytes * (1 - 1 / ratio))
        why = f"attention reads about {1 - 1 / ratio:.0%} fewer bytes: {_less_time(share)}"
        yield share, Advice("--kv-cache-dtype", f"{_cache_format(self.settings)} (lossy)", why)

    def _speculation(self) -> Iterator[Advice]:
        """Propose it where nothing is drafted; on a GPU auto drafts nothing."""
        on_cpu = self.settings.device == "cpu"
        if self.settings.speculation not in (("off",) if on_cpu else ("off", "auto")):
            return
        milliseconds = 1000 * self.busy_seconds / self.num_steps
        why = f"each accepted draft token saves its sequence a step of {milliseconds:.1f} ms"
        if (free := self._free_draft_tokens()) >= 1:
            why += f"; reading alone leaves time to verify about {free:,.0f} for each token"
        method = "auto" if on_cpu else "suffix"
        yield Advice("--speculative-config", f'{{"method": "{method}"}}', why)

    def _free_draft_tokens(self) -> int:
        """Return how many draft tokens a decoded token could have whose arithmetic hides behind reading."""
        computing = self.work.decode_flops / self.peak.flops
        reading = self.work.decode_bytes / self.peak.bandwidth
        return int(reading / computing - 1) if computing > 0 else 0

    @property
    def _num_bytes(self) -> float:
        return self.work.prefill_bytes + self.work.decode_bytes

    @property
    def _weight_share(self) -> float:
        """Share of what was read that weights are, about."""
        return min(1.0, self.num_steps * self.settings.weight_bytes / self._num_bytes) if self._num_bytes else 0.0

    def _freed_by_weights(self) -> float:
        """Return the bytes that int8 weights save; 0 where they are quantized already."""
        if self.settings.quantization != "none":
            return 0.0
        return self.settings.weight_bytes * (1 - 1 / _BYTES.get(self.settings.dtype, 1.0))

    def _cache_ratio(self) -> float:
        """Return how many times as many tokens an 8-bit KV cache holds; 1 where it has 8 bits already."""
        return _BYTES.get(self.settings.kv_cache_dtype, 1.0)

    def _share_of_time(self, num_bytes: float) -> float:
        return num_bytes / self.peak.bandwidth / self.busy_seconds


def _cache_format(settings: ServerSettings) -> str:
    return "int8" if settings.device == "cpu" else "fp8"


def _less_time(share: float) -> str:
    return f"up to {min(share, 1.0):.0%} less time in steps"
