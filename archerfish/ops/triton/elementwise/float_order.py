"""An order-preserving mapping from float32 to int32, for binary searches of thresholds."""

import triton
import triton.language as tl


@triton.jit
def float_to_order(x):
    """Map float32 to int32. Both zeros map to the same number, NaN beyond either infinity."""
    bits = (x + 0.0).to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def order_to_float(order):
    """Map an order back to its float32."""
    bits = order ^ ((order >> 31) & 0x7FFFFFFF)
    return bits.to(tl.float32, bitcast=True)
