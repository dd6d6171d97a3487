"""Settings of an engine gathered before it is made, as vLLM's users do. Reads nothing but what it is given."""

from os import PathLike
from typing import TYPE_CHECKING, Any

from archerfish.config.load import check_settings
from archerfish.config.settings import EngineConfig


class EngineArgs:
    """The settings that LLM takes: EngineArgs(model="perch", max_model_len=1024). They may be changed until used.

    vars(args) are those that were given: LLM(**vars(args)) and LLM.from_engine_args(args) are the same.
    """

    def __init__(self, model: str | PathLike[str] | None = None, **settings: Any) -> None:
        vars(self).update(settings, model=model)
        self.config()  # Shows now what is wrong with them.

    def config(self) -> EngineConfig:
        """The settings as the engine takes them, checked."""
        return check_settings(vars(self))

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """The default of a setting that was not given."""
            if name not in EngineConfig.__dataclass_fields__:
                raise AttributeError(f"{name} is not a setting that was given, and the engine has none of this name")
            return getattr(EngineConfig(), name)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"


class AsyncEngineArgs(EngineArgs):
    """The same for AsyncLLM."""
