"""Energy is added up over packages and over counters that start again; where it cannot be read there is none."""

from pathlib import Path

from archerfish.machine.energy import EnergyMeter


def zone(root: Path, directory: str, name: str, energy: int, largest: int = 1000_000) -> Path:
    path = root / directory
    path.mkdir()
    (path / "name").write_text(f"{name}\n")
    (path / "max_energy_range_uj").write_text(f"{largest}\n")
    (path / "energy_uj").write_text(f"{energy}\n")
    return path / "energy_uj"


def test_packages_are_added_and_their_parts_are_not(tmp_path: Path) -> None:
    first = zone(tmp_path, "intel-rapl:0", "package-0", 100_000)
    second = zone(tmp_path, "intel-rapl:1", "package-1", 0)
    part = zone(tmp_path, "intel-rapl:0:0", "core", 0)
    whole = zone(tmp_path, "intel-rapl:2", "psys", 0)
    (tmp_path / "intel-rapl").mkdir()
    meter = EnergyMeter(tmp_path)
    assert meter.can_read and meter.joules() == 0.0
    for counter, energy in ((first, 400_000), (second, 200_000), (part, 999_999), (whole, 999_999)):
        counter.write_text(str(energy))
    assert meter.joules() == 0.5


def test_a_counter_that_starts_again_goes_on(tmp_path: Path) -> None:
    counter = zone(tmp_path, "intel-rapl:0", "package-0", 900_000)
    meter = EnergyMeter(tmp_path)
    counter.write_text("200000")
    assert meter.joules() == 0.3
    counter.write_text("250000")
    assert meter.joules() == 0.35
    counter.unlink()
    assert meter.joules() == 0.35


def test_what_may_not_be_read_is_left_alone(tmp_path: Path) -> None:
    assert not EnergyMeter(tmp_path / "none").can_read
    zone(tmp_path, "intel-rapl:0", "package-0", 0).unlink()
    meter = EnergyMeter(tmp_path)
    assert not meter.can_read and meter.joules() == 0.0
