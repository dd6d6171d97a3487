"""The native operations for tests, with every set of kernels that this CPU runs."""

from functools import cache

import pytest

from archerfish.ops.cpu.library import Library, Team, library
from archerfish.ops.cpu.native import NativeOps

FOUND = library()
KERNELS = FOUND.kernels if isinstance(FOUND, Library) else ()
needs_native = pytest.mark.skipif(not KERNELS, reason=str(FOUND))
every_kernel = pytest.mark.parametrize("kernels", KERNELS)


@cache
def native(kernels: str, threads: int = 2) -> NativeOps:
    return NativeOps(Team(threads, kernels))
