"""What a machine says of itself: hidden AMX above all, because torch dies of it."""

import os
import subprocess
import sys

import pytest

from archerfish import machine
from archerfish.machine import Cpu, hide_broken_amx, num_usable_cores, parse_cpuinfo

VARIABLE = "ONEDNN_MAX_CPU_ISA"

PROCESSOR = """\
processor\t: {number}
vendor_id\t: GenuineIntel
model name\t: Intel(R) Xeon(R) Processor @ 2.00GHz: special
cpuid level\t: {level}
wp\t\t: yes
flags\t\t: fpu vme avx512f {flags}
bugs\t\t: spectre_v1

"""


def cpuinfo(level, flags, *, later_flags=None):
    """Two processors; the second may differ, as it does on machines with large and small cores."""
    first = PROCESSOR.format(number=0, level=level, flags=flags)
    return first + PROCESSOR.format(number=1, level=level, flags=flags if later_flags is None else later_flags)


@pytest.mark.parametrize(
    ("level", "flags", "hidden"),
    [
        (28, "amx_bf16 amx_tile amx_int8", True),
        (13, "amx_tile", True),
        (29, "amx_bf16 amx_tile amx_int8", False),
        (30, "amx_tile", False),
        (32, "amx_tile", False),
        (28, "avx512_bf16", False),
        (13, "", False),
        (28, "amx_tilex xamx_tile", False),
    ],
)
def test_amx_is_hidden_where_it_is_advertised_but_its_leaf_cannot_be_read(level, flags, hidden):
    assert parse_cpuinfo(cpuinfo(level, flags)).has_hidden_amx is hidden


@pytest.mark.parametrize("level", ["", "unknown", "-1"])
def test_an_unreadable_cpuid_level_hides_nothing(level):
    cpu = parse_cpuinfo(cpuinfo(level, "amx_tile"))
    assert cpu.max_cpuid_leaf is None
    assert not cpu.has_hidden_amx


def test_the_first_processor_is_described():
    cpu = parse_cpuinfo(cpuinfo(28, "first", later_flags="second"))
    assert cpu.name == "Intel(R) Xeon(R) Processor @ 2.00GHz: special"
    assert cpu.flags == {"fpu", "vme", "avx512f", "first"}
    assert cpu.max_cpuid_leaf == 28
    assert cpu.num_cores == num_usable_cores()


def test_an_arm_processor_has_features_and_no_amx():
    cpu = parse_cpuinfo("processor\t: 0\nBogoMIPS\t: 50.00\nFeatures\t: fp asimd sve bf16\nCPU part\t: 0xd40\n\n")
    assert cpu.flags == {"fp", "asimd", "sve", "bf16"}
    assert not cpu.has_hidden_amx
    assert cpu.name


@pytest.mark.parametrize("text", ["", "\n\n", "nonsense", "flags\n"])
def test_a_description_without_anything_in_it_still_gives_a_processor(text):
    cpu = parse_cpuinfo(text)
    assert cpu.flags == frozenset()
    assert cpu.num_cores >= 1
    assert not cpu.has_hidden_amx


def pretend(monkeypatch, level, flags):
    cpu = parse_cpuinfo(cpuinfo(level, flags))
    assert isinstance(cpu, Cpu)
    monkeypatch.setattr(machine, "cpu", lambda: cpu)


def test_onednn_is_told_to_leave_hidden_amx_alone(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    pretend(monkeypatch, 28, "amx_tile")
    hide_broken_amx()
    assert os.environ[VARIABLE] == "AVX512_CORE_FP16"


@pytest.mark.parametrize(("level", "flags"), [(29, "amx_tile"), (32, "amx_tile"), (28, ""), (13, "avx2")])
def test_onednn_is_told_nothing_where_amx_works_or_is_absent(monkeypatch, level, flags):
    monkeypatch.delenv(VARIABLE, raising=False)
    pretend(monkeypatch, level, flags)
    hide_broken_amx()
    assert VARIABLE not in os.environ


@pytest.mark.parametrize("own", ["AVX2", "ALL", ""])
def test_a_users_own_setting_wins(monkeypatch, own):
    monkeypatch.setenv(VARIABLE, own)
    pretend(monkeypatch, 28, "amx_tile")
    hide_broken_amx()
    assert os.environ[VARIABLE] == own


def run_python(code, **environment):
    clean = {name: value for name, value in os.environ.items() if name != VARIABLE}
    return subprocess.run(
        [sys.executable, "-c", code], env=clean | environment, capture_output=True, text=True, check=True
    ).stdout.strip()


def test_importing_the_package_imports_no_torch_and_settles_the_matter_before_it():
    code = "import os, sys, archerfish; print('torch' in sys.modules, os.environ.get('ONEDNN_MAX_CPU_ISA'))"
    wanted = "AVX512_CORE_FP16" if machine.cpu().has_hidden_amx else None
    assert run_python(code) == f"False {wanted}"
    assert run_python(code, **{VARIABLE: "AVX2"}) == "False AVX2"


def test_cores_a_process_may_not_run_on_are_not_counted(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 5}, raising=False)
    assert num_usable_cores() == 2
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert num_usable_cores() == 1


V2 = "/sys/fs/cgroup/memory."
V1 = "/sys/fs/cgroup/memory/memory."


def memory(monkeypatch, tmp_path, meminfo=None, shown=None):
    """Files as the machine would show them, by path; any other does not exist."""
    shown = {"/proc/meminfo": meminfo, **(shown or {})}
    real = machine.Path

    def path(name):
        stand_in = real(tmp_path, name.strip("/").replace("/", "_"))
        if shown.get(name) is not None:
            stand_in.write_text(shown[name])
        return stand_in

    monkeypatch.setattr(machine, "Path", path)


MEMINFO = "MemTotal:       16000000 kB\nMemFree:         1000 kB\nMemAvailable:    8000000 kB\nSwapTotal: 5 kB\n"
ALL = 8_000_000 * 1024


def test_memory_is_what_the_machine_can_still_give(monkeypatch, tmp_path):
    memory(monkeypatch, tmp_path, MEMINFO)
    assert machine.available_memory() == ALL
    assert machine.total_memory() == 16_000_000 * 1024


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
    assert machine.available_memory() == left


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
    assert machine.available_memory() == left


@pytest.mark.parametrize(
    ("limit", "left"),
    [("2000000\n", 600_000), ("9223372036854771712\n", ALL), ("-1\n", ALL)],
)
def test_the_older_files_are_read_where_there_are_no_newer_ones(monkeypatch, tmp_path, limit, left):
    # Lines without "total_" leave out the groups below this one, which its usage counts.
    statistics = "inactive_file 1\nactive_file 2\ntotal_inactive_file 300000\ntotal_active_file 200000\n"
    files = {V1 + "limit_in_bytes": limit, V1 + "usage_in_bytes": "1900000\n", V1 + "stat": statistics}
    memory(monkeypatch, tmp_path, MEMINFO, files)
    assert machine.available_memory() == left


@pytest.mark.parametrize("meminfo", [None, "nothing of use\n"])
def test_without_a_description_the_systems_own_page_count_is_taken(monkeypatch, tmp_path, meminfo):
    memory(monkeypatch, tmp_path, meminfo)
    pages = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert machine.available_memory() == machine.total_memory() == pages


class Driver:
    """Of a GPU, or of none: notes what it is asked."""

    def __init__(self, *, has_gpu: bool) -> None:
        self.asked: list[str] = []
        self._has_gpu = has_gpu

    def cuInit(self, _):  # noqa: N802
        self.asked.append("init")
        return 0

    def cuDeviceGet(self, *_):  # noqa: N802
        self.asked.append("device")
        return 0 if self._has_gpu else 100

    def cuDevicePrimaryCtxRetain(self, *_):  # noqa: N802
        self.asked.append("context")
        return 0


@pytest.mark.parametrize("has_gpu", [True, False])
def test_a_gpu_is_woken_by_a_thread(has_gpu, monkeypatch):
    driver = Driver(has_gpu=has_gpu)
    monkeypatch.setattr(machine.ctypes, "CDLL", {"libcuda.so.1": driver}.get)
    machine.wake_gpu().join()
    assert driver.asked == ["init", "device", *(["context"] if has_gpu else [])]


def test_where_there_is_no_driver_nothing_is_woken(monkeypatch):
    def missing(name):
        raise OSError(name)

    monkeypatch.setattr(machine.ctypes, "CDLL", missing)
    machine.wake_gpu().join()


@pytest.mark.parametrize(
    ("imported", "not_yet"), [("from archerfish import LLM", "torch"), ("import archerfish.engine.build", "jinja2")]
)
def test_what_takes_long_is_loaded_when_it_is_needed(imported, not_yet):
    child = f"import sys; {imported}; sys.exit({not_yet!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", child], check=False).returncode == 0
