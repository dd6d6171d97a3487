"""Memory that sequences hold and do not use: blocks against room set aside for the longest possible answer."""

import numpy as np
from workbench import show

from archerfish.kvcache.prefix_cache import NO_MATCH
from archerfish.kvcache.tables import KVTables

NUM_SLOTS = 262_144
MAX_MODEL_LEN = 2048
NUM_REQUESTS = 4000


def lengths() -> np.ndarray:
    """Prompt plus answer, in tokens, with the long tail of real traffic."""
    rng = np.random.default_rng(0)
    prompts = rng.lognormal(5.5, 1.0, NUM_REQUESTS)
    answers = rng.lognormal(4.8, 0.9, NUM_REQUESTS)
    return np.clip(prompts + answers, 8, MAX_MODEL_LEN).astype(int)


def contiguous(reserved: np.ndarray, used: np.ndarray) -> tuple[int, float]:
    """Sequences that fit when each takes its room at once, and the share of it they never fill."""
    fits = int(np.searchsorted(np.cumsum(reserved), NUM_SLOTS, side="right"))
    return fits, 1 - used[:fits].sum() / reserved[:fits].sum()


def paged(used: np.ndarray, block_size: int) -> tuple[int, float]:
    """The same with the engine's own tables."""
    tables = KVTables(NUM_SLOTS // block_size, block_size, (None,), step_tokens=MAX_MODEL_LEN, prefix_caching=False)
    held = 0
    for count, length in enumerate(used):
        table = tables.open(NO_MATCH)
        if tables.reserve(table, int(length)) is None:
            return count, 1 - used[:count].sum() / held
        held += table.capacity
    raise AssertionError("the pool is larger than the workload")


def main() -> None:
    used = lengths()
    powers = 2 ** np.ceil(np.log2(used)).astype(int)
    cases = [
        ("contiguous, the longest answer", contiguous(np.full_like(used, MAX_MODEL_LEN), used)),
        ("contiguous, next power of two (known length)", contiguous(powers, used)),
        *((f"blocks of {size}", paged(used, size)) for size in (128, 32, 16, 8)),
    ]
    baseline = cases[0][1][0]
    rows = [(name, f"{fits:,}", f"{fits / baseline:.1f}x", f"{waste:.1%}") for name, (fits, waste) in cases]
    show(f"{NUM_SLOTS:,} token slots", ("allocation", "sequences at once", "against longest", "wasted"), rows)


if __name__ == "__main__":
    main()
