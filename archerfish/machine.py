"""What this machine is: CPU features, memory, a GPU to be woken. Reads /proc and the like; never imports torch."""

import ctypes
import os
import platform
import threading
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

_LAST_ISA_WITHOUT_AMX = "AVX512_CORE_FP16"
_AMX_PALETTE_LEAF = 0x1D
_SPINS = "1000"  # Microseconds, not milliseconds: about the gap between two operations of a step.


class _CgroupFiles(NamedTuple):
    """Where a version of cgroups tells a container's memory."""

    limit: str
    used: str
    """Holds the bytes in use, among them every file the container has read."""
    statistics: str
    page_cache: tuple[str, ...]
    """The lines of `statistics` that count those files."""


_CGROUP_V2 = _CgroupFiles(
    limit="/sys/fs/cgroup/memory.max",
    used="/sys/fs/cgroup/memory.current",
    statistics="/sys/fs/cgroup/memory.stat",
    page_cache=("inactive_file", "active_file"),
)
_CGROUP_V1 = _CgroupFiles(
    limit="/sys/fs/cgroup/memory/memory.limit_in_bytes",
    used="/sys/fs/cgroup/memory/memory.usage_in_bytes",
    statistics="/sys/fs/cgroup/memory/memory.stat",
    page_cache=("total_inactive_file", "total_active_file"),
)
_NO_LIMIT = 1 << 60  # Version 1 has no word for it: it shows the largest number of whole pages, about 1 << 63.


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

        oneDNN then configures no tiles and the first matrix product dies with SIGILL.
        """
        return "amx_tile" in self.flags and self.max_cpuid_leaf is not None and self.max_cpuid_leaf < _AMX_PALETTE_LEAF


@cache
def cpu() -> Cpu:
    try:
        description = Path("/proc/cpuinfo").read_text()
    except OSError:
        description = ""
    return parse_cpuinfo(description)


def parse_cpuinfo(text: str) -> Cpu:
    """The first processor of a /proc/cpuinfo; every field falls back to what Python knows."""
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
    """Cores this process may run on, which a container or `taskset` can make fewer than the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def hide_broken_amx() -> None:
    """Tell oneDNN to leave AMX alone where its tiles cannot be configured. A user's own setting wins."""
    if cpu().has_hidden_amx:
        os.environ.setdefault("ONEDNN_MAX_CPU_ISA", _LAST_ISA_WITHOUT_AMX)


def calm_threads() -> None:
    """Let torch's idle threads spin only briefly, then sleep. A user's own setting wins.

    They would spin for long by default, and a busy neighbour then makes every small operation wait for its time slice:
    a decode step was seen to take ten times as long.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", _SPINS)


def wake_gpu() -> threading.Thread:
    """Have the first GPU made ready, if there is one, by a thread: it takes about as long as importing half of torch.

    Errors are left for torch to meet, which has words for them.
    """
    thread = threading.Thread(target=_wake_gpu, name="wake the GPU", daemon=True)
    thread.start()
    return thread


def _wake_gpu() -> None:
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return
    device, context = ctypes.c_int(), ctypes.c_void_p()
    if driver.cuInit(0) == 0 and driver.cuDeviceGet(ctypes.byref(device), 0) == 0:
        # The context that torch will use, too. It is never given back: whoever wakes a GPU is about to use it.
        driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)


def cpu_seconds_of(pid: int) -> float | None:
    """Return the processor time a process and its ended children have used; None where the system does not say."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # The name of the program comes first, in brackets, and may itself hold brackets and spaces.
    fields = stat.rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def available_memory() -> int:
    """Bytes of main memory this process can still take: the machine's, or its container's if that is less."""
    available = _meminfo("MemAvailable")
    if available is None:
        available = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    room = _cgroup_room()
    return available if room is None else min(available, room)


def give_back_memory() -> None:
    """Return what was freed to the system. The allocator keeps it by default: after loading, 100 MB were seen."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # Only glibc has it.
    if trim is not None:
        trim(0)


def total_memory() -> int:
    """Bytes of main memory the machine has."""
    total = _meminfo("MemTotal")
    return total if total is not None else os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _meminfo(field: str) -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    return None


def _cgroup_room() -> int | None:
    """What the container's limit leaves, page cache that the kernel would give back included; None without a limit."""
    for files in (_CGROUP_V2, _CGROUP_V1):
        limit, used = _read_number(files.limit), _read_number(files.used)
        if limit is not None and used is not None and limit < _NO_LIMIT:
            return max(0, min(limit, limit - used + _reclaimable(files)))
    return None


def _reclaimable(files: _CgroupFiles) -> int:
    try:
        lines = Path(files.statistics).read_text().splitlines()
    except OSError:
        return 0
    counts = dict(line.split(maxsplit=1) for line in lines if " " in line.strip())
    return sum(int(counts[name]) for name in files.page_cache if counts.get(name, "").isdigit())


def _read_number(path: str) -> int | None:
    """The number in a file; None if there is no such file, or a word like "max" in it."""
    try:
        text = Path(path).read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None
