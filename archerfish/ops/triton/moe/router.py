"""Routes each token to its experts."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from archerfish.ops.signatures import Routed
from archerfish.ops.triton.elementwise import float_to_order, order_to_float
from archerfish.ops.triton.runtime import launch, pdl_trigger, pdl_wait, summing_vector_of

MOST_EXPERTS = 1024
"""Most experts: a program holds the logits, or counts the pairs, of all of them in its registers."""


def route(logits: Tensor, num_chosen: int, normalize: bool) -> Routed:
    routed = Routed(
        torch.empty(len(logits), num_chosen, dtype=torch.int32, device=logits.device),
        torch.empty(len(logits), num_chosen, dtype=torch.float32, device=logits.device),
    )
    route_into(routed, logits, normalize)
    return routed


def route_into(out: Routed, logits: Tensor, normalize: bool) -> None:
    """Store experts [T, k] int32 and weights [T, k] float32, from logits [T, experts] of any float type."""
    num_rows, num_experts = logits.shape
    num_chosen = out.chosen.shape[1]
    assert num_chosen <= num_experts <= MOST_EXPERTS, (
        f"{num_chosen} of {num_experts} experts, and at most {MOST_EXPERTS} are supported"
    )
    assert out.chosen.is_contiguous() and out.weights.is_contiguous()
    block = triton.next_power_of_2(num_experts)
    vector = summing_vector_of(num_experts, logits)
    launch(
        _route_kernel,
        (num_rows,),
        *(out.chosen, out.weights, logits, logits.stride(0) // vector),
        NORMALIZES=normalize,
        NUM_EXPERTS=num_experts,
        BLOCK=block,
        NUM_CHOSEN=num_chosen,
        SLOTS=triton.next_power_of_2(num_chosen),
        VECTOR=vector,
        num_warps=max(1, block // 256),
        enable_fp_fusion=False,
    )


@triton.jit(do_not_specialize=["stride"])
def _route_kernel(
    chosen, weights, logits, stride,
    NORMALIZES: tl.constexpr, NUM_EXPERTS: tl.constexpr, BLOCK: tl.constexpr, NUM_CHOSEN: tl.constexpr,
    SLOTS: tl.constexpr, VECTOR: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Route one token: its largest logit is taken again and again."""
    pdl_trigger(PDL)
    row = tl.program_id(0).to(tl.int64)
    experts = tl.arange(0, BLOCK)
    slots = tl.arange(0, SLOTS)
    pdl_wait(PDL)
    source = logits + row * stride * VECTOR + experts
    x = tl.load(source, mask=experts < NUM_EXPERTS, other=float("-inf")).to(tl.float32)
    peak = tl.max(x, 0)
    total = tl.sum(tl.exp(x - peak), 0)
    order = tl.where(x == x, float_to_order(x), 0x7FFFFFFF)  # NaN goes first, and order_to_float restores it.
    order = tl.where(experts < NUM_EXPERTS, order, -0x80000000)
    taken = tl.zeros([SLOTS], tl.int32)
    shares = tl.zeros([SLOTS], tl.float32)
    for slot in range(NUM_CHOSEN):
        largest = tl.max(order, 0)
        expert = tl.min(tl.where(order == largest, experts, BLOCK), 0)
        taken = tl.where(slots == slot, expert, taken)
        shares = tl.where(slots == slot, tl.exp(order_to_float(largest) - peak) / total, shares)
        order = tl.where(experts == expert, -0x80000000, order)
    if NORMALIZES:
        shares /= tl.sum(shares, 0)
    tl.store(chosen + row * NUM_CHOSEN + slots, taken, mask=slots < NUM_CHOSEN)
    tl.store(weights + row * NUM_CHOSEN + slots, shares, mask=slots < NUM_CHOSEN)
