"""Settings of an engine gathered before it is made, as vLLM's users do. Reads nothing but what it is given."""

import argparse
from os import PathLike
from typing import TYPE_CHECKING, Any, Self, TypeVar

from archerfish.config.foreign_settings import VLLM_ENGINE
from archerfish.config.load import check_settings, field_docs, field_types, without_none
from archerfish.config.settings import EngineConfig, flag_name

Parser = TypeVar("Parser", bound=argparse.ArgumentParser)


class EngineArgs:
    """The settings that LLM takes: EngineArgs(model="perch", max_model_len=1024). They may be changed until used.

    vars(args) are those that were given: LLM(**vars(args)) and LLM.from_engine_args(args) are the same.
    """

    def __init__(self, model: str | PathLike[str] | None = None, **settings: Any) -> None:
        vars(self).update(settings, model=model)
        self.config()  # Shows now what is wrong with them.

    @staticmethod
    def add_cli_args(parser: Parser) -> Parser:
        """Give a program's parser a flag for each setting, and for each of vLLM's EngineArgs.

        Flags that are not given are None, which stands for the default: LLM(**vars(parser.parse_args())) works, too.
        """
        group = parser.add_argument_group("Engine")
        types, docs = field_types(EngineConfig), field_docs(EngineConfig)
        for name, kind in types.items():
            # argparse reads % as the beginning of a format.
            _add_flag(group, name, is_switch=without_none(kind) is bool, text=docs[name].replace("%", "%%"))
        for name, foreign in VLLM_ENGINE.items():
            _add_flag(group, name, is_switch=foreign.is_switch, text=argparse.SUPPRESS)
        return parser

    @classmethod
    def from_cli_args(cls, args: argparse.Namespace) -> Self:
        """Make them of what a parser with these flags has read; its other arguments are left alone."""
        names = (*field_types(EngineConfig), *VLLM_ENGINE)
        given = {name: value for name in names if (value := getattr(args, name, None)) is not None}
        return cls(**given)

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


def _add_flag(group: argparse._ArgumentGroup, name: str, *, is_switch: bool, text: str) -> None:
    """Add a flag whose value is checked with all the others, so that errors are the same as in Python."""
    if is_switch:
        group.add_argument(flag_name(name), action=argparse.BooleanOptionalAction, default=None, help=text)
    else:
        group.add_argument(flag_name(name), default=None, metavar="VALUE", help=text)


class AsyncEngineArgs(EngineArgs):
    """The same for AsyncLLM."""
