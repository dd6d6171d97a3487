"""The conditions of a measurement: model, machine, settings. Knows no measurement."""

from dataclasses import dataclass
from typing import Self

import torch

from archerfish import __version__
from archerfish.arch.cost import num_parameters
from archerfish.config.resolve import ResolvedConfig
from archerfish.engine.build import Blueprint
from archerfish.machine.cpu import cpu
from archerfish.machine.measure import measure_peak
from archerfish.machine.peak import Peak


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    model: str
    num_parameters: int
    device_name: str
    peak: Peak
    """Peak measured here, on as many threads as the model runs on."""
    version: str
    torch_version: str
    settings: ResolvedConfig

    @classmethod
    def of(cls, blueprint: Blueprint) -> Self:
        """Measure the peak, in under a second, and return the conditions."""
        settings = blueprint.config
        torch.set_num_threads(settings.threads)
        return cls(
            model=blueprint.directory.name,
            num_parameters=num_parameters(blueprint.arch),
            device_name=device_name(settings.device),
            peak=measure_peak(settings.dtype, settings.device),
            version=__version__,
            torch_version=torch.__version__,
            settings=settings,
        )

    @property
    def title(self) -> str:
        """Model, size, number format and device in one line."""
        settings = self.settings
        weights = settings.dtype + (" random weights" if settings.load_format == "dummy" else "")
        on = self.device_name + (f", {settings.threads} threads" if settings.device == "cpu" else "")
        return f"{self.model}, {self.num_parameters / 1e6:,.1f}M parameters, {weights}, on {on}"

    @property
    def engine_title(self) -> str:
        """Title of a measurement of the whole engine, which may speculate."""
        return f"{self.title}, speculation {self.settings.speculation.method}"


def device_name(device: str) -> str:
    return cpu().name if device == "cpu" else torch.cuda.get_device_name()
