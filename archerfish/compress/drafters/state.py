"""The state of a training in its output directory, to be resumed: options, samples, progress."""

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from archerfish.compress.drafters.options import DrafterOptions
from archerfish.compress.drafters.samples import Samples
from archerfish.config.settings import EngineConfig, flag_name
from archerfish.errors import ConfigError

_FOLDER = "state"
_FREE = ("output", "max_steps")
"""Options that may change when a training is resumed."""


@dataclass(slots=True)
class TrainingProgress:
    """The progress of a training, with everything that the next step depends on."""

    step: int
    num_steps: int | None
    """Number of steps; None until the time of a step is known."""
    parameters: Mapping[str, Any]
    optimizer: Mapping[str, Any]


class State:
    def __init__(self, config: EngineConfig, options: DrafterOptions) -> None:
        """Open the output directory, and create it if needed; a ConfigError if it holds anything else."""
        self.directory = Path(options.output)
        self._folder = self.directory / _FOLDER
        chosen = {name: value for name, value in asdict(options).items() if name not in _FREE}
        chosen |= {"model": config.model, "revision": config.revision, "hf_overrides": dict(config.hf_overrides)}
        try:
            self._open(chosen)
        except OSError as error:
            raise ConfigError(f"--output {self.directory} cannot be used: {error.strerror}") from error

    def samples(self, write: Callable[[], Samples]) -> Samples:
        """Return the samples, which are generated if they are not saved yet."""
        file = self._folder / "samples.safetensors"
        if not file.exists():
            write().save(file)
        return Samples.load(file)

    def load(self, device: str) -> TrainingProgress | None:
        file = self._folder / "progress.pt"
        if not file.exists():
            return None
        return TrainingProgress(**torch.load(file, map_location=device, weights_only=True))

    def save(self, progress: TrainingProgress) -> None:
        """Save the progress, atomically."""
        new = self._folder / "progress.new"
        fields = ("step", "num_steps", "parameters", "optimizer")
        torch.save({name: getattr(progress, name) for name in fields}, new)
        new.replace(self._folder / "progress.pt")

    def remove(self) -> None:
        shutil.rmtree(self._folder)

    def _open(self, chosen: Mapping[str, Any]) -> None:
        file = self._folder / "options.json"
        if file.exists():
            self._check(json.loads(file.read_text("utf-8")), chosen)
            return
        if self.directory.exists() and any(self.directory.iterdir()):
            raise ConfigError(
                f"--output {self.directory} is not empty, and has no training to resume: "
                "give another directory, or empty it"
            )
        self._folder.mkdir(parents=True)
        new = file.with_suffix(".new")
        new.write_text(json.dumps(chosen), encoding="utf-8")
        new.replace(file)

    def _check(self, before: Mapping[str, Any], chosen: Mapping[str, Any]) -> None:
        for name, value in chosen.items():
            if before.get(name) != value:
                raise ConfigError(
                    f"{self.directory} has a training that began with {flag_name(name)} {before.get(name)}, "
                    f"not {value}: resume with that, or give another --output"
                )
