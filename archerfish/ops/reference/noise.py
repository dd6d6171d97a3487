"""Seeded Gumbel noise: a pure function of seed, position and token, so that a draw is the same in any batch.

The argmax of logits / T + Gumbel noise is a draw from softmax(logits / T). The bits come from a 32-bit hash whose few
operations are the same on every device and in every language. There is no state between calls.
"""

import torch
from torch import Tensor

_GOLDEN = 0x9E3779B9
_MIX_1 = 0x7FEB352D
_MIX_2 = 0x846CA68B  # A published low-bias pair of multipliers for a 32-bit finalizer.
_LARGEST_BELOW_ONE = 1.0 - 2.0**-24
_WORD = 2**32 - 1


LARGEST_GAP = 32.0
"""Upper bound of the difference of two noises, which are between -2.82 and 22.88, with a margin for rounding."""


def gumbel(seeds: Tensor, positions: Tensor, tokens: Tensor) -> Tensor:
    """Return noise [rows, tokens] for 64-bit seeds [rows] (as int64), positions [rows] and token ids.

    Token ids are [tokens], the same for every row, or [rows, tokens].
    """
    low, high = _int32(seeds), _int32(seeds >> 32)
    low_position = _int32(positions)
    first_key = _mix(_mix(low ^ _constant(_GOLDEN)) + low_position)
    second_key = _mix(_mix(high + first_key) ^ low_position)
    # In place from here on: with a whole vocabulary, allocating memory would take most of the time.
    bits = _mix(_int32(tokens) * _constant(_GOLDEN) + first_key[:, None])
    bits = _mix(bits.bitwise_xor_(second_key[:, None]))
    # Uniform in (0, 1), finest near 0: that end becomes the largest noise, where resolution matters.
    uniform = bits.to(torch.float32)
    uniform.add_(bits < 0, alpha=2.0**32).add_(0.5).mul_(2.0**-32).clamp_(max=_LARGEST_BELOW_ONE)
    return uniform.neg_().log1p_().neg_().log_().neg_()


def uniform(seed: int, position: int, number: int) -> float:
    """Return the number in (0, 1) that noise for a token of this id is computed from, to all 32 bits.

    For single decisions Python integers take a fraction of the time of tensors with one element.
    """
    low, high, low_position = seed & _WORD, seed >> 32 & _WORD, position & _WORD
    first_key = _mix_int(_mix_int(low ^ _GOLDEN) + low_position)
    second_key = _mix_int(_mix_int(high + first_key) ^ low_position)
    bits = _mix_int(_mix_int(number * _GOLDEN + first_key) ^ second_key)
    return (bits + 0.5) * 2.0**-32


def _mix_int(x: int) -> int:
    """Mix the low 32 bits as _mix does."""
    x &= _WORD
    x = (x ^ x >> 16) * _MIX_1 & _WORD
    x = (x ^ x >> 15) * _MIX_2 & _WORD
    return x ^ x >> 16


def _mix(x: Tensor) -> Tensor:
    """Spread every input bit over all 32, in place. Multiplication wraps; masks make shifts logical."""
    shifted = x >> 16
    x.bitwise_xor_(shifted.bitwise_and_(0xFFFF)).mul_(_constant(_MIX_1))
    torch.bitwise_right_shift(x, 15, out=shifted)
    x.bitwise_xor_(shifted.bitwise_and_(0x1FFFF)).mul_(_constant(_MIX_2))
    torch.bitwise_right_shift(x, 16, out=shifted)
    return x.bitwise_xor_(shifted.bitwise_and_(0xFFFF))


def _int32(x: Tensor) -> Tensor:
    """Return the low 32 bits as a signed number."""
    return ((x.to(torch.int64) + 2**31) % 2**32 - 2**31).to(torch.int32)


def _constant(value: int) -> int:
    """Return the signed number with the same 32 bits."""
    return value - 2**32 if value >= 2**31 else value
