"""Compares what the native library declares (csrc/abi.h) with the structures and numbers of `program`."""

import ctypes
from collections.abc import Iterator
from ctypes import Structure, c_float
from enum import IntEnum

import numpy as np

from archerfish.ops.cpu import program
from archerfish.ops.cpu.limits import Limit
from archerfish.ops.cpu.program import ACTIVATIONS, OPERANDS, Format, Index, Number, Operation
from archerfish.ops.signatures import CHUNK, DRAW_ROW, MOST_TREE_TOKENS

_ENUMERATIONS: tuple[type[IntEnum], ...] = (Format, Number, Index, Limit)


def find_mismatch(description: str) -> str | None:
    """Return the first thing that the library and this package declare differently, or None if there is none."""
    theirs = dict(map(_parsed, description.splitlines()))
    ours = dict(map(_parsed, _declarations()))
    for thing in [*ours, *theirs]:
        declared, expected = theirs.get(thing, "not declared"), ours.get(thing, "not declared")
        if declared != expected:
            return f"{thing} is {declared} in the library and {expected} in the package"
    return None


def _parsed(line: str) -> tuple[str, str]:
    """Split a line of csrc/abi.h into what it is about and what it says of it."""
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
        yield f"operation {operation.name.lower()} {operation.value} {OPERANDS[operation].__name__}"
    for enumeration in _ENUMERATIONS:
        for member in enumeration:
            yield f"enumerator {enumeration.__name__} {member.name.lower()} {member.value}"
    for name, number in ACTIVATIONS.items():
        yield f"enumerator Activation {name} {number}"
    for name, value in _constants().items():
        yield f"constant {name} {value}"


def _structures() -> list[type[Structure]]:
    declared = vars(program).values()
    return [one for one in declared if isinstance(one, type) and issubclass(one, Structure) and one is not Structure]


def _record(name: str, record: np.dtype[np.void]) -> Iterator[str]:
    yield f"structure {name} {record.itemsize}"
    assert record.fields is not None
    for field, (dtype, offset, *_) in record.fields.items():
        kind = "float" if dtype.kind == "f" else "integer"
        yield f"field {name} {field} {offset} {dtype.itemsize} {kind}"


def _constants() -> dict[str, int]:
    return {
        "PANEL": program.PANEL,
        "MOST_HEAD_DIM": program.MOST_HEAD_DIM,
        "MOST_PARTS": program.MOST_PARTS,
        "MOST_TREE_TOKENS": MOST_TREE_TOKENS,
    }


def _kind(kind: type) -> str:
    if issubclass(kind, Structure):
        return "structure"
    if issubclass(kind, c_float):
        return "float"
    is_integer = issubclass(kind, (ctypes.c_int32, ctypes.c_int64))
    return "integer" if is_integer else "pointer"
