"""Which models come with the package, and where they lie. Knows nothing of what is in them."""

from pathlib import Path

DEFAULT_MODEL = "perch"
"""What runs where no model is named."""

_ROOT = Path(__file__).parent


def models_in_box() -> dict[str, Path]:
    """The directory of each model by its name, the default first."""
    found = {config.parent.name: config.parent for config in _ROOT.glob("*/config.json")}
    return {name: found[name] for name in sorted(found, key=lambda name: (name != DEFAULT_MODEL, name))}


def draft_in_box(model: Path, method: str) -> Path | None:
    """What guesses for a model of the box in this way; None where the box has nothing for it."""
    if model.parent != _ROOT:
        return None
    found = _ROOT / "minnow" if method == "draft_model" else model / method
    return found if found != model and (found / "config.json").exists() else None
