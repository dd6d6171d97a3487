"""Settings: what a user asked for (settings.py), where it is read from (load.py), what it comes to (resolve.py)."""

from archerfish.config.settings import EngineConfig

__all__ = ["EngineConfig"]
