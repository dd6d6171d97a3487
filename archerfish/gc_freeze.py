"""Keeps Python's garbage collector from scanning modules that live as long as the process."""

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def import_frozen_from_gc(module: str) -> Iterator[None]:
    """Import a module within this context and exclude all objects created meanwhile from garbage collection.

    torch creates so many objects that scanning them takes a tenth of a second: during the import, at exit, and now and
    then between two steps, for which a GPU waits. Only the first import is frozen: a later one could freeze garbage.
    """
    if module in sys.modules or not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
        gc.freeze()
    finally:
        gc.enable()
