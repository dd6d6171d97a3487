"""Finds the native library and calls it. Without it, says why there is none."""

import ctypes
import os
from ctypes import POINTER, c_char_p, c_int, c_int64, c_void_p
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from archerfish.errors import NoKernel, OutOfBounds
from archerfish.ops.cpu.abi import find_mismatch
from archerfish.ops.cpu.limits import LIMITS, Limit
from archerfish.ops.cpu.program import Assembly, Drafting, Instructions, Refusal, Step

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
    if (mismatch := _mismatch(functions)) is not None:
        return f"the native kernels in {path} are of another version, install the package again: {mismatch}"
    functions.archerfish_kernels.restype = c_char_p
    functions.archerfish_open.restype, functions.archerfish_open.argtypes = c_void_p, (c_char_p, c_int)
    functions.archerfish_close.restype, functions.archerfish_close.argtypes = None, (c_void_p,)
    program = (c_void_p, POINTER(Instructions))
    functions.archerfish_run.restype = None
    functions.archerfish_run.argtypes = (*program, POINTER(Step), POINTER(Refusal))
    functions.archerfish_run_chunks.restype = c_int64
    functions.archerfish_run_chunks.argtypes = (*program, POINTER(Assembly), POINTER(Refusal))
    functions.archerfish_draft.restype = None
    functions.archerfish_draft.argtypes = (c_void_p, POINTER(Drafting), POINTER(Refusal))
    kernels = tuple(functions.archerfish_kernels().decode().split())
    if not kernels:
        return "the native kernels need a CPU with AVX2, FMA and F16C"
    return Library(functions, kernels)


def _mismatch(functions: ctypes.CDLL) -> str | None:
    """Return what the library declares differently than this package, or None."""
    try:
        describe = functions.archerfish_abi
    except AttributeError:
        return "they do not describe their structures"
    describe.restype = c_char_p
    return find_mismatch(describe().decode())


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
        assert self.kernels in found.kernels, f"this CPU runs no {self.kernels} kernels"
        self._handle = self._functions.archerfish_open(self.kernels.encode(), num_threads)
        if not self._handle:
            raise NoKernel(f"the system cannot start {num_threads} threads; use fewer --threads")

    def run(self, instructions: Instructions, step: Step) -> None:
        """Return when all is done. Other threads may run Python meanwhile.

        This and the functions below raise OutOfBounds, and compute nothing, where a call exceeds what its instructions
        were built for.
        """
        refusal = Refusal()
        self._functions.archerfish_run(
            self._handle, ctypes.byref(instructions), ctypes.byref(step), ctypes.byref(refusal)
        )
        _check(refusal)

    def run_chunks(self, instructions: Instructions, chunks: Assembly) -> int:
        """The same for the step that the chunks come to. The number of its rows."""
        refusal = Refusal()
        num_rows: int = self._functions.archerfish_run_chunks(
            self._handle, ctypes.byref(instructions), ctypes.byref(chunks), ctypes.byref(refusal)
        )
        _check(refusal)
        return num_rows

    def draft(self, drafting: Drafting) -> None:
        """Pass after pass, until every row has its guesses."""
        refusal = Refusal()
        self._functions.archerfish_draft(self._handle, ctypes.byref(drafting), ctypes.byref(refusal))
        _check(refusal)

    def close(self) -> None:
        if self._handle:
            self._functions.archerfish_close(self._handle)
            self._handle = None

    def __del__(self) -> None:
        self.close()


def _check(refusal: Refusal) -> None:
    if refusal.limit:
        raise OutOfBounds(LIMITS[Limit(refusal.limit)], refusal.given, refusal.least, refusal.most)
