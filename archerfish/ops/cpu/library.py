"""Finds the native library and calls it. Without it, says why there is none."""

import ctypes
import os
from ctypes import POINTER, c_char_p, c_int, c_int64, c_void_p
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from archerfish.ops.cpu.program import STRUCTURES, Assembly, Drafting, Instruction, Step
from archerfish.ops.signatures import DRAW_ROW

_MODULE = "archerfish.ops.cpu._kernels"
_VARIABLE = "NATIVE_ARCHERFISH"
"""Names another file to take instead: a build with sanitizers, for instance."""


@dataclass(frozen=True, slots=True)
class Library:
    functions: ctypes.CDLL
    kernels: tuple[str, ...]
    """Instruction sets it has kernels for and this CPU runs, fastest first."""


@cache
def library() -> Library | str:
    """The library, or the reason why it cannot be used."""
    path = os.environ.get(_VARIABLE) or _installed()
    if path is None or not Path(path).exists():
        return "the native kernels were not built: install a C++ compiler and install the package again"
    try:
        functions = ctypes.CDLL(path)
    except OSError as error:
        return f"the native kernels cannot be loaded: {error}"
    functions.archerfish_kernels.restype = c_char_p
    functions.archerfish_open.restype, functions.archerfish_open.argtypes = c_void_p, (c_char_p, c_int)
    functions.archerfish_close.restype, functions.archerfish_close.argtypes = None, (c_void_p,)
    functions.archerfish_run.restype = None
    functions.archerfish_run.argtypes = (c_void_p, POINTER(Instruction), c_int64, POINTER(Step))
    functions.archerfish_run_chunks.restype = c_int64
    functions.archerfish_run_chunks.argtypes = (c_void_p, POINTER(Instruction), c_int64, POINTER(Assembly))
    functions.archerfish_draft.restype, functions.archerfish_draft.argtypes = None, (c_void_p, POINTER(Drafting))
    functions.archerfish_size_of.restype, functions.archerfish_size_of.argtypes = c_int64, (c_char_p,)
    sizes = {structure.__name__: ctypes.sizeof(structure) for structure in STRUCTURES} | {"DrawRow": DRAW_ROW.itemsize}
    for name, size in sizes.items():
        if functions.archerfish_size_of(name.encode()) != size:
            return f"the native kernels in {path} are of another version: install the package again"
    kernels = tuple(functions.archerfish_kernels().decode().split())
    if not kernels:
        return "the native kernels need a CPU with AVX2, FMA and F16C"
    return Library(functions, kernels)


def _installed() -> str | None:
    # The loader of an editable install knows where the build put it; importing it would find no Python module.
    spec = find_spec(_MODULE)
    return None if spec is None else spec.origin


class Team:
    """Threads that run programs, with the kernels of one instruction set."""

    def __init__(self, num_threads: int, kernels: str | None = None) -> None:
        found = library()
        assert isinstance(found, Library), found
        self._functions = found.functions
        self.kernels = kernels or found.kernels[0]
        self._handle = self._functions.archerfish_open(self.kernels.encode(), num_threads)
        assert self._handle, f"this CPU runs no {self.kernels} kernels"

    def run(self, instructions: "ctypes.Array[Instruction]", step: Step) -> None:
        """Returns when all is done. Others may run Python meanwhile."""
        self._functions.archerfish_run(self._handle, instructions, len(instructions), ctypes.byref(step))

    def run_chunks(self, instructions: "ctypes.Array[Instruction]", chunks: Assembly) -> int:
        """The same for the step that the chunks come to. The number of its rows."""
        arguments = (self._handle, instructions, len(instructions), ctypes.byref(chunks))
        num_rows: int = self._functions.archerfish_run_chunks(*arguments)
        return num_rows

    def draft(self, drafting: Drafting) -> None:
        """Pass after pass, until every row has its guesses."""
        self._functions.archerfish_draft(self._handle, ctypes.byref(drafting))

    def close(self) -> None:
        if self._handle:
            self._functions.archerfish_close(self._handle)
            self._handle = None

    def __del__(self) -> None:
        self.close()
