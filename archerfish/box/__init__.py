"""The models that come with the package, and their directories."""

from pathlib import Path

DEFAULT_MODEL = "perch"
"""The model that runs where none is named."""

_ROOT = Path(__file__).parent


def models_in_box() -> dict[str, Path]:
    """Return the directory of each model by name, the default first."""
    directories = {config.parent.name: config.parent for config in _ROOT.glob("*/config.json")}
    return {name: directories[name] for name in sorted(directories, key=lambda name: (name != DEFAULT_MODEL, name))}


def draft_in_box(model: Path, method: str) -> Path | None:
    """Return the drafter of a bundled model for a speculation method; None where there is none."""
    if model.parent != _ROOT:
        return None
    drafter = _ROOT / "minnow" if method == "draft_model" else model / method
    return drafter if drafter != model and (drafter / "config.json").exists() else None
