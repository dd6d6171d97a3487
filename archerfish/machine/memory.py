"""How much main memory there is, and how much of it this process may still take."""

import ctypes
import os
from pathlib import Path
from typing import NamedTuple


class _CgroupFiles(NamedTuple):
    """The files in which a version of cgroups describes a container's memory."""

    limit: str
    used: str
    """Holds the bytes in use, including every file that the container has read."""
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
_NO_LIMIT = 1 << 60
"""Bytes from which a limit means none: version 1 shows the largest number of whole pages, about 1 << 63."""


def total_memory() -> int:
    """Return the bytes of main memory that the machine has."""
    total = _meminfo("MemTotal")
    return total if total is not None else os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def available_memory() -> int:
    """Return the bytes this process can still take: the machine's, or its container's if that is less."""
    available = _meminfo("MemAvailable")
    if available is None:
        available = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    left_in_container = _left_in_cgroup()
    return available if left_in_container is None else min(available, left_in_container)


def trim_heap() -> None:
    """Return freed memory to the system. The allocator retains it by default: 100 MB were seen after loading."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # Only glibc has it.
    if trim is not None:
        trim(0)


def _meminfo(field: str) -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    return None


def _left_in_cgroup() -> int | None:
    """Return what the container's limit leaves, including page cache that can be reclaimed; None without a limit."""
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
    """Return the number in a file; None if there is no such file, or a word like "max" in it."""
    try:
        text = Path(path).read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None
