"""The CPU as the operating system describes it, and the settings that must be made for it before torch is imported."""

import os
import platform
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_LAST_ISA_WITHOUT_AMX = "AVX512_CORE_FP16"
_AMX_PALETTE_LEAF = 0x1D
_SPIN_MICROSECONDS = "1000"
"""How long an idle OpenMP thread spins: about the gap between two operations of a step. The default is milliseconds."""


@dataclass(frozen=True, slots=True)
class Cpu:
    """One CPU as the operating system describes it."""

    name: str
    num_cores: int
    flags: frozenset[str]
    max_cpuid_leaf: int | None

    @property
    def has_hidden_amx(self) -> bool:
        """AMX is advertised, but the leaf that describes its tiles cannot be read.

        oneDNN then configures no tiles and the first matrix multiplication dies with SIGILL.
        """
        return "amx_tile" in self.flags and self.max_cpuid_leaf is not None and self.max_cpuid_leaf < _AMX_PALETTE_LEAF


@cache
def cpu() -> Cpu:
    """Return this machine's CPU."""
    try:
        description = Path("/proc/cpuinfo").read_text()
    except OSError:
        description = ""
    return parse_cpuinfo(description)


def parse_cpuinfo(text: str) -> Cpu:
    """Return the first processor of a /proc/cpuinfo; every field falls back to what Python knows."""
    fields: dict[str, str] = {}
    for line in text.partition("\n\n")[0].splitlines():
        key, _, value = line.partition(":")
        fields[key.strip()] = value.strip()
    leaf = fields.get("cpuid level", "")
    return Cpu(
        name=fields.get("model name") or platform.processor() or platform.machine(),
        num_cores=num_usable_cores(),
        flags=frozenset(fields.get("flags", fields.get("Features", "")).split()),
        max_cpuid_leaf=int(leaf) if leaf.isdigit() else None,
    )


def num_usable_cores() -> int:
    """Return how many cores this process may run on: a container or `taskset` can allow fewer than there are."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def hide_broken_amx() -> None:
    """Keep oneDNN from using AMX where its tiles cannot be configured. The user's own setting takes precedence."""
    if cpu().has_hidden_amx:
        os.environ.setdefault("ONEDNN_MAX_CPU_ISA", _LAST_ISA_WITHOUT_AMX)


def limit_thread_spinning() -> None:
    """Let torch's idle threads spin only briefly, then sleep. The user's own setting takes precedence.

    They spin for long by default, and a busy neighbour then makes every small operation wait for its time slice: a
    decode step was seen to take ten times as long.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", _SPIN_MICROSECONDS)


def cpu_seconds_of(pid: int) -> float | None:
    """Return the processor time a process and its ended children have used; None where the system does not say."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # The name of the program comes first, in brackets, and may itself contain brackets and spaces.
    fields = stat.rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
