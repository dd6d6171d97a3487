"""Energy that the CPU packages have used, where the kernel lets us read it (RAPL)."""

from pathlib import Path

_POWERCAP = Path("/sys/class/powercap")
_PLATFORM = "psys"
"""Name of the zone of the whole machine, packages included: adding it would count them twice."""


class EnergyMeter:
    """Counts energy from its creation on. Read it every few minutes: the kernel's counters wrap around."""

    def __init__(self, root: Path = _POWERCAP) -> None:
        self._zones = [zone for path in _packages(root) if (zone := _Zone.open(path)) is not None]

    @property
    def can_read(self) -> bool:
        """Whether there is a counter that this process may read."""
        return bool(self._zones)

    def joules(self) -> float:
        """Return the energy used by all packages since the meter was created."""
        return sum(zone.read() for zone in self._zones) / 1e6


class _Zone:
    """One package's counter, in microjoules."""

    def __init__(self, path: Path, first: int, largest: int) -> None:
        self._path = path
        self._largest = largest
        self._last = first
        self._total = 0

    @classmethod
    def open(cls, path: Path) -> "_Zone | None":
        """Return a package's counter; None if it may not be read: since 2020 kernels let only root do so."""
        try:
            if (path / "name").read_text().strip() == _PLATFORM:
                return None
            return cls(path, _number(path / "energy_uj"), _number(path / "max_energy_range_uj"))
        except (OSError, ValueError):
            return None

    def read(self) -> int:
        try:
            now = _number(self._path / "energy_uj")
        except (OSError, ValueError):
            return self._total  # It went away: what was counted stays.
        self._total += now - self._last if now >= self._last else now + self._largest - self._last
        self._last = now
        return self._total


def _packages(root: Path) -> list[Path]:
    """Return the zones that are not part of another: intel-rapl:0, but not intel-rapl:0:1."""
    try:
        return sorted(path for path in root.iterdir() if path.name.count(":") == 1)
    except OSError:
        return []


def _number(path: Path) -> int:
    return int(path.read_text())
