"""What a measurement was made with: model, machine, settings. Knows no measurement."""

from dataclasses import dataclass
from typing import Self

import torch

from archerfish import __version__
from archerfish.arch.cost import num_parameters
from archerfish.config.resolve import ResolvedConfig
from archerfish.engine.build import Blueprint
from archerfish.machine import cpu
from archerfish.metrics.peak import measure_peak
from archerfish.metrics.state import Peak


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    model: str
    num_parameters: int
    device_name: str
    peak: Peak
    """Measured here, on as many threads as the model runs on."""
    version: str
    torch_version: str
    settings: ResolvedConfig

    @classmethod
    def of(cls, blueprint: Blueprint) -> Self:
        """Measures the peak, in under a second."""
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
        """In one line, for a person."""
        on = self.device_name + (f", {self.settings.threads} threads" if self.settings.device == "cpu" else "")
        return f"{self.model}, {self.num_parameters / 1e6:,.1f}M parameters, {self.settings.dtype}, on {on}"


def device_name(device: str) -> str:
    return cpu().name if device == "cpu" else torch.cuda.get_device_name()
