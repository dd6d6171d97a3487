"""What Python's collector of garbage need not look at."""

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def out_of_the_collectors_sight(module: str) -> Iterator[None]:
    """Import a module whose objects live until the program ends, so that looking for garbage among them is in vain.

    torch makes so many that searching them takes a tenth of a second: while it is imported, on the way out, and now and
    then between two steps, for which a GPU waits. Only a first import is hidden: later there may be garbage among what
    would be kept.
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
