"""How much memory a process may take, on the machine and in a container."""

import os

import pytest

from archerfish.machine import memory as memory_module

V2 = "/sys/fs/cgroup/memory."
V1 = "/sys/fs/cgroup/memory/memory."


def memory(monkeypatch, tmp_path, meminfo=None, shown=None):
    """Files as the machine would show them, by path; any other does not exist."""
    shown = {"/proc/meminfo": meminfo, **(shown or {})}
    real = memory_module.Path

    def path(name):
        stand_in = real(tmp_path, name.strip("/").replace("/", "_"))
        if shown.get(name) is not None:
            stand_in.write_text(shown[name])
        return stand_in

    monkeypatch.setattr(memory_module, "Path", path)


MEMINFO = "MemTotal:       16000000 kB\nMemFree:         1000 kB\nMemAvailable:    8000000 kB\nSwapTotal: 5 kB\n"
ALL = 8_000_000 * 1024


def test_memory_is_what_the_machine_can_still_give(monkeypatch, tmp_path):
    memory(monkeypatch, tmp_path, MEMINFO)
    assert memory_module.available_memory() == ALL
    assert memory_module.total_memory() == 16_000_000 * 1024


@pytest.mark.parametrize(
    ("limit", "used", "left"),
    [
        ("2000000\n", "500000\n", 1_500_000),
        ("2000000\n", "3000000\n", 0),
        ("max\n", "500000\n", ALL),
        (str(2**60), "0", ALL),
        ("2000000", None, ALL),
    ],
)
def test_a_containers_limit_counts_where_it_is_the_smaller_one(monkeypatch, tmp_path, limit, used, left):
    memory(monkeypatch, tmp_path, MEMINFO, {V2 + "max": limit, V2 + "current": used})
    assert memory_module.available_memory() == left


@pytest.mark.parametrize(
    ("statistics", "left"),
    [
        ("anon 300\nfile 1500000\ninactive_file 1000000\nactive_file 400000\nshmem 100000\n", 1_500_000),
        ("inactive_file 1000000\n", 1_100_000),
        ("inactive_file 9000000\n", 2_000_000),
        ("inactive_file\nactive_file many\n\n", 100_000),
        ("", 100_000),
    ],
)
def test_files_a_container_has_read_do_not_count_as_used(monkeypatch, tmp_path, statistics, left):
    memory(monkeypatch, tmp_path, MEMINFO, {V2 + "max": "2000000", V2 + "current": "1900000", V2 + "stat": statistics})
    assert memory_module.available_memory() == left


@pytest.mark.parametrize(
    ("limit", "left"),
    [("2000000\n", 600_000), ("9223372036854771712\n", ALL), ("-1\n", ALL)],
)
def test_the_older_files_are_read_where_there_are_no_newer_ones(monkeypatch, tmp_path, limit, left):
    # Lines without "total_" leave out the groups below this one, which its usage counts.
    statistics = "inactive_file 1\nactive_file 2\ntotal_inactive_file 300000\ntotal_active_file 200000\n"
    files = {V1 + "limit_in_bytes": limit, V1 + "usage_in_bytes": "1900000\n", V1 + "stat": statistics}
    memory(monkeypatch, tmp_path, MEMINFO, files)
    assert memory_module.available_memory() == left


@pytest.mark.parametrize("meminfo", [None, "nothing of use\n"])
def test_without_a_description_the_systems_own_page_count_is_taken(monkeypatch, tmp_path, meminfo):
    memory(monkeypatch, tmp_path, meminfo)
    pages = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert memory_module.available_memory() == memory_module.total_memory() == pages
