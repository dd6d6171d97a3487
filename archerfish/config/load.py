"""The only reader of configuration files, environment variables and flags. Knows types, not what values mean."""

import ast
import inspect
import json
import logging
import math
import os
import textwrap
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from archerfish.config.compatibility import SettingSource, own_value, shown_value, translate
from archerfish.config.foreign_settings import FOREIGN
from archerfish.config.numbers import parse_count
from archerfish.config.settings import EngineConfig, ServerConfig, flag_name
from archerfish.config.switches import read_switch
from archerfish.errors import ConfigError

ENVIRONMENT_PREFIX = "ARCHERFISH_"

logger = logging.getLogger("archerfish")

LEAST_LIKENESS = 0.8
"""Of two names, for one to be offered instead of the other: a wrong hint is worse than none."""

Settings = TypeVar("Settings", EngineConfig, ServerConfig)

Notify = Callable[[str], None]

_SHARED = (EngineConfig, ServerConfig)
"""What a file and the environment may set, side by side: each command takes what is its own."""


def load_config(
    record: type[Settings],
    flags: Mapping[str, Any],
    config_file: Path | None,
    environ: Mapping[str, str],
    notify: Notify = logger.info,
) -> Settings:
    """Settings from the file, over them the environment's, over them the flags; defaults where none says anything.

    A flag of None was not given. A name that is not a setting is refused, wherever it stands. `notify` is called with
    what a user should know of settings of other engines.
    """
    given = {
        **_from_file(record, config_file, notify),
        **_from_environment(record, environ, notify),
        **read_flags(record, flags),
    }
    return record(**given)


def check_settings(settings: Mapping[str, Any]) -> EngineConfig:
    """Settings given in Python, checked and converted as flags are. A setting of None was not given."""
    own = field_types(EngineConfig)
    foreign = {name: value for name, value in settings.items() if name not in own and name in FOREIGN}
    translated = translate(foreign, SettingSource(own))
    for notice in translated.notices:
        logger.info(notice)
    own_settings = {name: value for name, value in settings.items() if name not in foreign}
    return EngineConfig(**read_flags(EngineConfig, own_settings, spell=lambda name: name))


def read_flags(record: type, flags: Mapping[str, Any], spell: Callable[[str], str] = flag_name) -> dict[str, Any]:
    """The flags that were given, converted to the types of a dataclass's fields. `spell` is the flag of a field."""
    given = {spell(name): (name, value) for name, value in flags.items() if value is not None}
    return _convert_all(record, given, spell)


def field_docs(record: type) -> dict[str, str]:
    """The text literal under each field of a dataclass, in one line; fields without one are left out."""
    definition = ast.parse(textwrap.dedent(inspect.getsource(record))).body[0]
    assert isinstance(definition, ast.ClassDef)
    docs = {}
    for statement, following in zip(definition.body, definition.body[1:], strict=False):
        if not (isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)):
            continue
        if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
            docs[statement.target.id] = " ".join(str(following.value.value).split())
    return docs


def field_types(record: type) -> dict[str, Any]:
    """The annotation of each field of a dataclass."""
    hints = get_type_hints(record)
    return {field.name: hints[field.name] for field in fields(record)}


def without_none(annotation: Any) -> Any:
    """What a field holds if it is set: int for int | None."""
    if get_origin(annotation) in (Union, UnionType):
        kinds = [kind for kind in get_args(annotation) if kind is not NoneType]
        assert len(kinds) == 1, f"a field can be one type or None, not {annotation}"
        return kinds[0]
    return annotation


def _from_file(record: type, path: Path | None, notify: Notify) -> dict[str, Any]:
    if path is None:
        return {}
    try:
        table = tomllib.loads(path.read_bytes().decode("utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read the configuration file {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"the configuration file {path} is not UTF-8 text (byte {error.start})") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"the configuration file {path} is not valid TOML: {error}") from error
    named = {f"{key} in {path}": (key.replace("-", "_"), value) for key, value in table.items()}
    if len({name for name, _ in named.values()}) < len(named):
        raise ConfigError(f"{path} names a setting twice, once with - and once with _: keep one of them")
    return _convert_shared(
        record,
        named,
        SettingSource(_shared(), write=lambda name, value: f"{name} = {shown_value(value)} in {path}"),
        notify,
    )


def _from_environment(record: type, environ: Mapping[str, str], notify: Notify) -> dict[str, Any]:
    named = {
        variable: (variable.removeprefix(ENVIRONMENT_PREFIX).lower(), text)
        for variable, text in environ.items()
        # Empty is how shells and compose files say "not set".
        if variable.startswith(ENVIRONMENT_PREFIX) and text
    }

    def spell(name: str) -> str:
        return ENVIRONMENT_PREFIX + name.upper()

    origin = SettingSource(_shared(), spell, lambda name, value: f"{spell(name)}={shown_value(value)}")
    return _convert_shared(record, named, origin, notify)


def _shared() -> set[str]:
    return {name for record in _SHARED for name in field_types(record)}


def _convert_shared(
    record: type, named: Mapping[str, tuple[str, Any]], origin: SettingSource, notify: Notify
) -> dict[str, Any]:
    """Like _convert_all, but settings of other records may stand there too, and those of other engines."""
    foreign = {name: value for name, value in named.values() if name not in origin.own and name in FOREIGN}
    given = {written: entry for written, entry in named.items() if entry[0] not in foreign}
    translated = translate(foreign, origin, {name for name, _ in given.values()})
    given |= {origin.spell(name): (name, value) for name, value in translated.settings.items()}
    # The record of the service is read from the same sources, and only by a command that reads this one, too.
    for notice in translated.notices if record is EngineConfig else ():
        notify(notice)
    types = field_types(record)
    own = {written: entry for written, entry in given.items() if entry[0] in types or entry[0] not in origin.own}
    return _convert_all(record, own, origin.spell, origin.own)


def _convert_all(
    record: type,
    named: Mapping[str, tuple[str, Any]],
    spell: Callable[[str], str],
    also_known: Iterable[str] = (),
) -> dict[str, Any]:
    """`named` maps what the user wrote to (field name, value); `spell` writes a field name as this source does."""
    types = field_types(record)
    converted = {}
    for written, (name, value) in named.items():
        if name not in types:
            raise ConfigError(f"{written} is not a setting{_suggestion(name, [*types, *also_known], spell)}")
        try:
            converted[name] = _convert(types[name], own_value(name, value))
        except (ValueError, OverflowError, ConfigError) as error:
            raise ConfigError(f"{written}: {error}") from error
    return converted


def _suggestion(name: str, known: Iterable[str], spell: Callable[[str], str]) -> str:
    from difflib import get_close_matches

    close = get_close_matches(name, known, n=1, cutoff=LEAST_LIKENESS)
    if close:
        return f"; did you mean {spell(close[0])}?"
    return "; archerfish serve --help lists all settings"


def _convert(annotation: Any, value: Any) -> Any:
    """The value as the annotation wants it, or a ValueError that says what is allowed."""
    kind = without_none(annotation)
    if kind is not annotation and kind is not str and isinstance(value, str) and value.lower() == "none":
        return None
    if get_origin(kind) is Literal:
        return _choice(get_args(kind), value)
    return _CONVERTERS[get_origin(kind) or kind](kind, value)


def _choice(allowed: tuple[Any, ...], value: Any) -> Any:
    if value not in allowed:
        raise ValueError(f"{value!r} is not one of {', '.join(allowed)}")
    return value


def _to_int(_: Any, value: Any) -> int:
    if isinstance(value, str):
        return parse_count(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{value!r} is not a whole number")
    return value


def _to_float(_: Any, value: Any) -> float:
    refusal = f"{value!r} is not a number"
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise ValueError(refusal)
    try:
        number = float(value)
    except ValueError:
        raise ValueError(refusal) from None
    if not math.isfinite(number):
        raise ValueError(refusal)
    return number


def _to_bool(_: Any, value: Any) -> bool:
    if isinstance(value, bool):
        return value
    switch = read_switch(value) if isinstance(value, str) else None
    if switch is None:
        raise ValueError(f"{value!r} is neither true nor false")
    return switch


def _to_str(_: Any, value: Any) -> str:
    if isinstance(value, os.PathLike):  # Python users name directories by Path.
        value = os.fspath(value)
    if not isinstance(value, str) or not value:
        raise ValueError(f"{value!r} is not a text, or it is empty")
    return value


def _to_mapping(kind: Any, value: Any) -> dict[Any, Any]:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError as error:
            raise ValueError(f'{value!r} is not JSON ({error}); write an object such as {{"name": 1}}') from error
    if not isinstance(value, Mapping):
        raise ValueError(f'{value!r} is not a JSON object; write one such as {{"name": 1}}')
    of_key, of_value = get_args(kind)
    return {
        _to_int(int, key) if of_key is int else key: _to_float(float, item) if of_value is float else item
        for key, item in value.items()
    }


def _to_tuple(kind: Any, value: Any) -> tuple[Any, ...]:
    of_item = get_args(kind)[0]
    if isinstance(value, str):
        value = value.split(",")
    if not isinstance(value, (list, tuple)):
        raise ValueError(f"{value!r} is not a list; write values with commas between them")
    return tuple(_convert(of_item, item) for item in value)


_CONVERTERS: dict[Any, Callable[[Any, Any], Any]] = {
    int: _to_int,
    float: _to_float,
    bool: _to_bool,
    str: _to_str,
    Mapping: _to_mapping,
    tuple: _to_tuple,
}
