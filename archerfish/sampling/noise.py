"""Seeded Gumbel noise: a pure function of seed, position and token, so a draw is the same in any batch.

The maximum of logits / T + Gumbel noise is a draw from softmax(logits / T). The bits come from a 32-bit hash whose few
operations are the same on every device and in every language; nothing is kept between calls.
"""

import torch
from torch import Tensor

_GOLDEN = 0x9E3779B9
_MIX_1 = 0x7FEB352D
_MIX_2 = 0x846CA68B  # A published low-bias pair of multipliers for a 32-bit finalizer.
_LARGEST_BELOW_ONE = 1.0 - 2.0**-24


def gumbel(seeds: Tensor, positions: Tensor, tokens: Tensor) -> Tensor:
    """Noise [rows, tokens] for 64-bit seeds [rows] (as int64), positions [rows] and token ids [tokens]."""
    low, high = _int32(seeds), _int32(seeds >> 32)
    place = _int32(positions)
    first_key = _mix(_mix(low ^ _constant(_GOLDEN)) + place)
    second_key = _mix(_mix(high + first_key) ^ place)
    bits = _mix(_int32(tokens) * _constant(_GOLDEN) + first_key[:, None])
    bits = _mix(bits ^ second_key[:, None])
    # Uniform in (0, 1), finest near 0: that end becomes the largest noise, where resolution matters.
    unsigned = bits.to(torch.float32) + (bits < 0) * 2.0**32
    uniform = ((unsigned + 0.5) * 2.0**-32).clamp_(max=_LARGEST_BELOW_ONE)
    return -torch.log(-torch.log1p(-uniform))


def _mix(x: Tensor) -> Tensor:
    """Spread every input bit over all 32. Products wrap; shifts must not drag the sign along."""
    x = x ^ ((x >> 16) & 0xFFFF)
    x = x * _constant(_MIX_1)
    x = x ^ ((x >> 15) & 0x1FFFF)
    x = x * _constant(_MIX_2)
    return x ^ ((x >> 16) & 0xFFFF)


def _int32(x: Tensor) -> Tensor:
    """The low 32 bits, as a signed number."""
    return ((x.to(torch.int64) + 2**31) % 2**32 - 2**31).to(torch.int32)


def _constant(value: int) -> int:
    """As the signed number with the same 32 bits."""
    return value - 2**32 if value >= 2**31 else value
