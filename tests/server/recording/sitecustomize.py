"""Imported by every Python process that finds it: records what runs between SIGUSR1 and SIGUSR2.

What was recorded is written to a file of the directory WALK, named after the process: modules of the package of which
a function was called, and wrappers. A wrapper is a class of which an object was made for the request and passed to a
function, and which holds the prompt, its token ids or another wrapper.
"""

import gc
import json
import os
import signal
import sys
import threading
from array import array
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

PACKAGE = "/archerfish/"
MARKER = "a fox that counts its steps"
"""Part of the prompt."""
LENGTH = 8
"""Numbers that are as many as this are token ids."""


class Recorder:
    """What runs in this process."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._active = False
        self._modules: set[str] = set()
        self._objects: dict[int, object] = {}
        self._before: set[int] = set()
        threading.setprofile(self._record)
        signal.signal(signal.SIGUSR1, self._begin)
        signal.signal(signal.SIGUSR2, self._end)

    def _begin(self, *_: object) -> None:
        self._before = {id(one) for one in gc.get_objects() if _is_ours(one)}
        self._modules.clear()
        self._active = True
        sys.setprofile(self._record)

    def _end(self, *_: object) -> None:
        sys.setprofile(None)
        self._active = False
        found = {"modules": sorted(self._modules), "wrappers": sorted(self._wrappers())}
        path = self._directory / f"{os.getpid()}.json"
        path.with_suffix(".new").write_text(json.dumps(found))
        path.with_suffix(".new").rename(path)

    def _record(self, frame: FrameType, event: str, value: object) -> None:
        if not self._active or event not in ("call", "return"):
            return
        code = frame.f_code
        _, inside, module = code.co_filename.partition(PACKAGE)
        if not inside or code.co_name == "<module>":
            return
        self._modules.add(module)
        values = [value] if event == "return" else [frame.f_locals.get(name) for name in _parameters(code)]
        for one in values:
            if _is_ours(one) and id(one) not in self._before:
                self._objects[id(one)] = one

    def _wrappers(self) -> set[str]:
        wrapping: set[int] = set()
        while True:
            more = {
                key
                for key, one in self._objects.items()
                if key not in wrapping and any(_is_payload(part) or id(part) in wrapping for part in _parts(one))
            }
            if not more:
                return {type(self._objects[key]).__name__ for key in wrapping}
            wrapping |= more


def _parameters(code: Any) -> tuple[str, ...]:
    names: tuple[str, ...] = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    return names


def _is_ours(one: object) -> bool:
    return str(type(one).__module__).startswith("archerfish.") and not isinstance(one, type)


def _is_payload(part: object) -> bool:
    if isinstance(part, str):
        return MARKER in part
    is_numbers = isinstance(part, (list, tuple, array)) and len(part) >= LENGTH
    return is_numbers and all(type(number) is int for number in part)  # type: ignore[union-attr]


def _parts(one: object) -> Iterator[object]:
    """The values of its attributes, and of lists and dictionaries among them."""
    parts: list[object] = list(getattr(one, "__dict__", {}).values())
    for kind in type(one).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        parts += [getattr(one, name, None) for name in ((slots,) if isinstance(slots, str) else slots)]
    parts += (getattr(one, "_fields", None) and list(one)) or []  # type: ignore[call-overload]
    parts += [getattr(one, name, None) for name in getattr(type(one), "__struct_fields__", ())]
    for part in parts:
        yield part
        if isinstance(part, (list, tuple, set)) and not hasattr(part, "_fields"):
            yield from part
        elif isinstance(part, dict):
            yield from part.values()


if "WALK" in os.environ:
    Recorder(Path(os.environ["WALK"]))
