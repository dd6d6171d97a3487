"""What a machine says of itself: hidden AMX above all, because torch dies of it."""

import os
import subprocess
import sys

import pytest

from archerfish.machine import cpu as cpu_module
from archerfish.machine.cpu import Cpu, hide_broken_amx, num_usable_cores, parse_cpuinfo

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
    monkeypatch.setattr(cpu_module, "cpu", lambda: cpu)


def test_onednn_does_not_use_hidden_amx(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    pretend(monkeypatch, 28, "amx_tile")
    hide_broken_amx()
    assert os.environ[VARIABLE] == "AVX512_CORE_FP16"


@pytest.mark.parametrize(("level", "flags"), [(29, "amx_tile"), (32, "amx_tile"), (28, ""), (13, "avx2")])
def test_onednn_is_not_limited_where_amx_works_or_is_absent(monkeypatch, level, flags):
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
    wanted = "AVX512_CORE_FP16" if cpu_module.cpu().has_hidden_amx else None
    assert run_python(code) == f"False {wanted}"
    assert run_python(code, **{VARIABLE: "AVX2"}) == "False AVX2"


def test_cores_a_process_may_not_run_on_are_not_counted(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 5}, raising=False)
    assert num_usable_cores() == 2
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert num_usable_cores() == 1


@pytest.mark.parametrize(
    ("imported", "not_yet"), [("from archerfish import LLM", "torch"), ("import archerfish.engine.build", "jinja2")]
)
def test_what_takes_long_is_loaded_when_it_is_needed(imported, not_yet):
    child = f"import sys; {imported}; sys.exit({not_yet!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", child], check=False).returncode == 0
