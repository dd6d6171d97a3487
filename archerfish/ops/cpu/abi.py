"""Compares what the native library declares (csrc/abi.h) with the structures and numbers of `program`."""

import ctypes
from collections.abc import Iterator
from ctypes import Structure, c_float
from enum import IntEnum

import numpy as np

from archerfish.ops.cpu import program
from archerfish.ops.cpu.limits import NativeLimit
from archerfish.ops.cpu.program import ACTIVATIONS, ARGUMENTS, CacheFormat, Format, IndexSource, Operation
from archerfish.ops.signatures import CHUNK, DRAW_ROW, MAX_TREE_TOKENS

_ENUMERATIONS: dict[str, type[IntEnum]] = {
    "Format": Format,
    "CacheFormat": CacheFormat,
    "IndexSource": IndexSource,
    "Limit": NativeLimit,
}


def find_mismatch(description: str) -> str | None:
    """Return the first thing that the library and this package declare differently, or None if there is none."""
    in_library = dict(map(_parsed, description.splitlines()))
    in_package = dict(map(_parsed, _declarations()))
    for subject in [*in_package, *in_library]:
        declared, expected = (lines.get(subject, "not declared") for lines in (in_library, in_package))
        if declared != expected:
            return f"{subject} is {declared} in the library and {expected} in the package"
    return None


def _parsed(line: str) -> tuple[str, str]:
    """Split a line of csrc/abi.h into its subject and what it declares."""
    match line.split():
        case ["structure", name, size]:
            return f"structure {name}", f"{size} bytes"
        case ["field", structure, name, offset, size, kind]:
            return f"field {structure}.{name}", f"{kind} of {size} bytes at byte {offset}"
        case ["operation", name, number, arguments]:
            return f"operation {name}", f"number {number} with {arguments}"
        case ["enumerator", enumeration, name, number]:
            return f"{enumeration} {name}", f"number {number}"
        case ["constant", name, value]:
            return f"constant {name}", value
        case _:
            return "the description", line


def _declarations() -> Iterator[str]:
    """Yield the lines that the library should return."""
    for structure in _structures():
        yield f"structure {structure.__name__} {ctypes.sizeof(structure)}"
        for name, kind, *_ in structure._fields_:
            field = getattr(structure, name)
            yield f"field {structure.__name__} {name} {field.offset} {field.size} {_kind(kind)}"
    for name, record in (("Chunk", CHUNK), ("DrawRow", DRAW_ROW)):
        yield from _record(name, record)
    for operation in Operation:
        yield f"operation {operation.name.lower()} {operation.value} {ARGUMENTS[operation].__name__}"
    for name, enumeration in _ENUMERATIONS.items():
        for member in enumeration:
            yield f"enumerator {name} {member.name.lower()} {member.value}"
    for name, number in ACTIVATIONS.items():
        yield f"enumerator Activation {name} {number}"
    for name, value in _constants().items():
        yield f"constant {name} {value}"


def _structures() -> list[type[Structure]]:
    classes = [value for value in vars(program).values() if isinstance(value, type) and issubclass(value, Structure)]
    return [structure for structure in classes if structure is not Structure]


def _record(name: str, record: np.dtype[np.void]) -> Iterator[str]:
    yield f"structure {name} {record.itemsize}"
    assert record.fields is not None
    for field, (dtype, offset, *_) in record.fields.items():
        kind = "float" if dtype.kind == "f" else "integer"
        yield f"field {name} {field} {offset} {dtype.itemsize} {kind}"


def _constants() -> dict[str, int]:
    constants = {name: value for name, value in vars(program).items() if name == "PANEL" or name.startswith("MAX_")}
    return {**constants, "MAX_TREE_TOKENS": MAX_TREE_TOKENS}


def _kind(kind: type) -> str:
    if issubclass(kind, Structure):
        return "structure"
    if issubclass(kind, c_float):
        return "float"
    is_integer = issubclass(kind, (ctypes.c_int32, ctypes.c_int64))
    return "integer" if is_integer else "pointer"
