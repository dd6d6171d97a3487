"""Sizes that steps are padded to, so that few of them are captured and few are tuned."""

import bisect

_SMALL_SIZES = (1, 2, 4, 8, 16, 24, 32, 48, 64)
_GRAIN = 64
_COARSE_FROM = 1024
_COARSE_GRAIN = 256


def bucket(size: int) -> int:
    """Return the smallest size to pad to. Padding is at most a third of small sizes and a few percent of large ones."""
    if size <= _SMALL_SIZES[-1]:
        return _SMALL_SIZES[bisect.bisect_left(_SMALL_SIZES, size)]
    grain = _GRAIN if size <= _COARSE_FROM else _COARSE_GRAIN
    return -(-size // grain) * grain
