"""Numbers as whole numbers that are ordered as they are. Knows nothing of what is looked for among them."""

import triton
import triton.language as tl


@triton.jit
def order_of(x):
    """Of float32, as int32. Both zeros are one; what is no number has an order beyond either infinity."""
    bits = (x + 0.0).to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def number_of(order):
    """What has this order."""
    bits = order ^ ((order >> 31) & 0x7FFFFFFF)
    return bits.to(tl.float32, bitcast=True)
