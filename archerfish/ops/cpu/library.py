"""Loads the native library and calls it, or says why it cannot be used."""

import ctypes
import os
from ctypes import POINTER, c_char_p, c_int, c_int64, c_void_p
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from archerfish.errors import NoKernel, OutOfBounds
from archerfish.ops.cpu.abi import find_mismatch
from archerfish.ops.cpu.limits import LIMIT_NAMES, NativeLimit
from archerfish.ops.cpu.program import BoundsError, Drafting, Instructions, StepAssembly, StepView

_MODULE = "archerfish.ops.cpu._kernels"
_VARIABLE = "NATIVE_ARCHERFISH"
"""Environment variable with the path of another library to load, such as a build with sanitizers."""


@dataclass(frozen=True, slots=True)
class Library:
    functions: ctypes.CDLL
    kernels: tuple[str, ...]
    """The instruction sets that it has kernels for and this CPU supports, fastest first."""


@cache
def library() -> Library | str:
    """Return the library, or the reason why it cannot be used."""
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
    functions.archerfish_run.argtypes = (*program, POINTER(StepView), POINTER(BoundsError))
    functions.archerfish_run_chunks.restype = c_int64
    functions.archerfish_run_chunks.argtypes = (*program, POINTER(StepAssembly), POINTER(BoundsError))
    functions.archerfish_draft.restype = None
    functions.archerfish_draft.argtypes = (c_void_p, POINTER(Drafting), POINTER(BoundsError))
    kernels = tuple(functions.archerfish_kernels().decode().split())
    if not kernels:
        return "the native kernels need a CPU with AVX2, FMA and F16C"
    return Library(functions, kernels)


def _mismatch(functions: ctypes.CDLL) -> str | None:
    """Return what the library declares differently than this package, or None."""
    try:
        describe = functions.archerfish_abi
    except AttributeError:
        return "the library does not describe its structures"
    describe.restype = c_char_p
    return find_mismatch(describe().decode())


def _installed() -> str | None:
    # The loader of an editable install knows the path. Importing the module would fail: it is not written for Python.
    spec = find_spec(_MODULE)
    return None if spec is None else spec.origin


class Team:
    """Threads that run programs with the kernels of one instruction set."""

    def __init__(self, num_threads: int, kernels: str | None = None) -> None:
        loaded = library()
        assert isinstance(loaded, Library), loaded
        self._functions = loaded.functions
        self.kernels = kernels or loaded.kernels[0]
        assert self.kernels in loaded.kernels, f"this CPU does not run {self.kernels} kernels"
        self._handle = self._functions.archerfish_open(self.kernels.encode(), num_threads)
        if not self._handle:
            raise NoKernel(f"the system cannot start {num_threads} threads; use fewer --threads")

    def run(self, instructions: Instructions, step: StepView) -> None:
        """Run a step. Other threads may run Python meanwhile.

        Like the methods below it raises OutOfBounds, and computes nothing, if the call exceeds the capacity of its
        instructions.
        """
        error = BoundsError()
        self._functions.archerfish_run(
            self._handle, ctypes.byref(instructions), ctypes.byref(step), ctypes.byref(error)
        )
        _check(error)

    def run_chunks(self, instructions: Instructions, assembly: StepAssembly) -> int:
        """Assemble a step from chunks and run it. Return its number of rows."""
        error = BoundsError()
        num_rows: int = self._functions.archerfish_run_chunks(
            self._handle, ctypes.byref(instructions), ctypes.byref(assembly), ctypes.byref(error)
        )
        _check(error)
        return num_rows

    def draft(self, drafting: Drafting) -> None:
        """Run pass after pass until every sequence has its draft tokens."""
        error = BoundsError()
        self._functions.archerfish_draft(self._handle, ctypes.byref(drafting), ctypes.byref(error))
        _check(error)

    def close(self) -> None:
        if self._handle:
            self._functions.archerfish_close(self._handle)
            self._handle = None

    def __del__(self) -> None:
        self.close()


def _check(error: BoundsError) -> None:
    if error.limit:
        raise OutOfBounds(LIMIT_NAMES[NativeLimit(error.limit)], error.value, error.min, error.max)
