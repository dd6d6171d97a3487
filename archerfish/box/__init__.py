"""Which models come with the package, and where they lie. Knows nothing of what is in them."""

from pathlib import Path

DEFAULT_MODEL = "perch"
"""What runs where no model is named."""

_ROOT = Path(__file__).parent


def models_in_box() -> dict[str, Path]:
    """The directory of each model by its name, the default first."""
    found = {config.parent.name: config.parent for config in _ROOT.glob("*/config.json")}
    return {name: found[name] for name in sorted(found, key=lambda name: (name != DEFAULT_MODEL, name))}
