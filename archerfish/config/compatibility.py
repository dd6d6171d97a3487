"""Accepts what programs for other engines set and what changes nothing here; refuses the rest with what to use.

Python, the command line, files and the environment share one table. Knows none of them: each says what it can take.
"""

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

from archerfish.config.foreign_settings import FOREIGN
from archerfish.config.settings import EngineConfig, ServerConfig
from archerfish.errors import ConfigError

_OF_ENGINE, _OF_SERVICE = (frozenset(field.name for field in fields(kind)) for kind in (EngineConfig, ServerConfig))
_OF_REQUESTS = {"grammar": "structured_outputs"}
"""Flags whose sampling parameter has another name."""
_MOST_SHOWN = 100
"""Characters of a value that a message repeats."""
_SETTING = re.compile(r"\{(no_)?(\w+)\}")


@dataclass(frozen=True, slots=True)
class SettingSource:
    """Where settings are given: a command, a class of Python, a file, the environment."""

    own: Collection[str]
    """Names of the settings that can be given there."""
    spell: Callable[[str], str] = lambda name: name
    """Writes the name of a setting as users do there."""
    write: Callable[[str, object], str] = lambda name, value: f"{name} {shown_value(value)}"
    """Writes a setting with its value."""

    def hint(self, name: str) -> str:
        """Return what takes the place of a setting of another engine, in words that fit here."""
        return self._spelled(FOREIGN[name].instead) or "leave it out"

    def notice(self, name: str) -> str:
        """Return what a user should know of a setting of another engine that was accepted."""
        return self._spelled(FOREIGN[name].notice)

    def _spelled(self, text: str) -> str:
        """Write our settings that a text names; where one of them cannot be given, say what to do about it."""
        named = [found[2] for found in _SETTING.finditer(text)]
        missing = next((name for name in named if name not in self.own), None)
        return _SETTING.sub(self._written, text) if missing is None else _elsewhere(missing)

    def _written(self, found: re.Match[str]) -> str:
        written = self.spell(found[2])
        if not found[1]:
            return written
        return f"--no-{written[2:]}" if written.startswith("--") else f"{written}=False"


class Translated(NamedTuple):
    """Settings as Archerfish has them."""

    settings: dict[str, Any]
    notices: list[str]
    """What users should know of those that were accepted."""


ALIASES: Mapping[str, Mapping[str, str]] = {
    "dtype": {"half": "float16", "float": "float32"},
    "kv_cache_dtype": {"fp8_e4m3": "fp8"},
    "load_format": {"safetensors": "auto", "hf": "auto"},
}
"""Values of settings of ours under the names of other engines."""

_QUANTIZED = "checkpoints that are quantized already are not read; give the original one and use int4 or int8"
REFUSED: Mapping[str, Mapping[str, str]] = {
    "quantization": dict.fromkeys(("awq", "awq_marlin", "gptq", "gptq_marlin", "compressed-tensors"), _QUANTIZED)
    | {"bitsandbytes": "use int8 or int4, which are made while loading", "gguf": "GGUF is not read"},
    "load_format": dict.fromkeys(("pt", "npcache", "bitsandbytes", "gguf"), "only safetensors are read; use auto"),
    "kv_cache_dtype": {"fp8_e5m2": "use fp8, which has more digits, or int8", "turboquant": "use int8 or fp8"},
}
"""Values that settings of ours have in other engines, and what to use."""


def own_value(name: str, value: Any) -> Any:
    """Return the value of a setting of ours as this engine calls it; raise ValueError with what to use instead."""
    if type(value).__module__ == "torch":  # A torch.dtype.
        value = str(value).removeprefix("torch.")
    if not isinstance(value, str):
        return value
    if value in REFUSED.get(name, {}):
        raise ValueError(f"{value!r}: {REFUSED[name][value]}")
    return ALIASES.get(name, {}).get(value, value)


def translate(settings: Mapping[str, Any], origin: SettingSource, given: Collection[str] = ()) -> Translated:
    """Take settings of other engines alone; raise a ConfigError for those that request what is not there.

    `given` are the names of our own settings that were given as well.
    """
    own: dict[str, Any] = {}
    notices = []
    for name, value in settings.items():
        foreign = FOREIGN[name]
        if value is not None and foreign.renamed in origin.own:
            if foreign.renamed in given:
                same = origin.spell(foreign.renamed)
                raise ConfigError(f"{origin.write(name, value)}: {same} is the same and was given, too; leave one out")
            own[foreign.renamed] = value
        elif not foreign.is_harmless(value):
            raise ConfigError(f"{origin.write(name, value)}: {origin.hint(name)}")
        elif foreign.notice and not foreign.is_default(value):
            notices.append(origin.notice(name))
    return Translated(own, notices)


def shown_value(value: object) -> str:
    """Return a value as people write it, within a bound."""
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= _MOST_SHOWN else text[:_MOST_SHOWN] + "..."


def _elsewhere(name: str) -> str:
    """Return what to do about a setting of ours that cannot be given here."""
    if name in _OF_ENGINE:
        return "leave it out"
    if name in _OF_SERVICE:
        return "it is for archerfish serve; leave it out"
    return f"give {_OF_REQUESTS.get(name, name)} with each request"
