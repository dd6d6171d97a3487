"""Gathers what `models` shows: bundled models and those in the hub cache. Prints nothing."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from archerfish.box import models_in_box
from archerfish.weights.describe import Description, describe

_MODEL = "models--"
"""Prefix of models, but not of datasets, in the hub cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundModel:
    name: str
    """Value for --model."""
    location: Literal["box", "cache"]
    directory: str
    num_bytes: int
    """Bytes on disk of all revisions together."""
    description: Description


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    models: list[FoundModel]
    hub_cache: str
    hub_cache_problem: str | None = None
    """Reason why the cache could not be read."""


def take_inventory() -> Inventory:
    """List bundled and cached models. Reads only configs and headers."""
    from huggingface_hub.constants import HF_HUB_CACHE

    boxed = [_boxed(name, directory) for name, directory in models_in_box().items()]
    try:
        repositories = sorted(path for path in Path(HF_HUB_CACHE).iterdir() if path.name.startswith(_MODEL))
    except FileNotFoundError:  # Nothing was ever downloaded.
        return Inventory(models=boxed, hub_cache=HF_HUB_CACHE)
    except OSError as error:
        return Inventory(models=boxed, hub_cache=HF_HUB_CACHE, hub_cache_problem=error.strerror)
    return Inventory(models=[*boxed, *map(_cached, repositories)], hub_cache=HF_HUB_CACHE)


def _boxed(name: str, directory: Path) -> FoundModel:
    size = _size(directory)
    return FoundModel(
        name=name, location="box", directory=str(directory), num_bytes=size, description=describe(directory)
    )


def _cached(repository: Path) -> FoundModel:
    """List the cached models. Not by huggingface_hub, which skips a model if a single file of it is missing."""
    model = FoundModel(
        name=repository.name.removeprefix(_MODEL).replace("--", "/"),
        location="cache",
        directory=str(repository),
        num_bytes=0,
        description=Description(problem="nothing of it has been downloaded"),
    )
    try:
        main = _main_revision(repository)
        shown = main or _newest_revision(repository)
        if shown is None:
            return model
        description = describe(shown)
        if main is None and description.problem is None:
            # A name without a revision means main.
            problem = f"its main revision is not in the cache: add --revision {shown.name}"
            description = replace(description, problem=problem)
        return replace(model, directory=str(shown), num_bytes=_size(shown.parent), description=description)
    except OSError as error:
        return replace(model, description=Description(problem=f"it cannot be read ({error.strerror})"))


def _main_revision(repository: Path) -> Path | None:
    try:
        commit = (repository / "refs" / "main").read_text(errors="replace").strip()
    except FileNotFoundError:
        return None
    directory = repository / "snapshots" / commit
    return directory if commit and directory.is_dir() else None


def _newest_revision(repository: Path) -> Path | None:
    return max((repository / "snapshots").glob("*/"), key=lambda path: path.stat().st_mtime, default=None)


def _size(directory: Path) -> int:
    """Return the bytes of all files in a directory; a file with several names, as revisions share them, counts once."""
    files = {path.resolve() for path in directory.rglob("*") if path.is_file()}
    return sum(file.stat().st_size for file in files)
