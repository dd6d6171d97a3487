"""Compares a library's bits with a kernel's before the library is used in its place."""

from collections.abc import Callable, Hashable

from archerfish.ops.triton.runtime import is_compile_only


class BitComparison:
    """Results of comparisons by size; each size is compared once."""

    def __init__(self) -> None:
        self._results: dict[Hashable, bool] = {}

    def agrees(self, size: Hashable, compare: Callable[[], bool | None]) -> bool:
        """Return whether the bits are equal for a size; `compare` returns None where it cannot decide now.

        While kernels are only compiled there are no bits: the library is then assumed to agree.
        """
        if size not in self._results:
            equal = compare()
            if is_compile_only():
                return True
            if equal is None:
                return False
            self._results[size] = equal
        return self._results[size]
