"""Sizes that steps are filled up to, so that few of them are captured and few are tuned."""

import bisect

_FEW = (1, 2, 4, 8, 16, 24, 32, 48, 64)
_GRAIN = 64
_COARSE_FROM = 1024
_COARSE_GRAIN = 256


def bucket(size: int) -> int:
    """The smallest size to fill up to. Never more than a third is wasted, nor, of many, more than a few percent."""
    if size <= _FEW[-1]:
        return _FEW[bisect.bisect_left(_FEW, size)]
    grain = _GRAIN if size <= _COARSE_FROM else _COARSE_GRAIN
    return -(-size // grain) * grain
