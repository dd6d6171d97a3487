"""Which experts each token goes to, by a Triton kernel. Knows nothing of what they do."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from archerfish.ops.signatures import Routed
from archerfish.ops.triton.elementwise import number_of, order_of
from archerfish.ops.triton.runtime import await_inputs, launch, let_next_start, summing_vector_of

MOST_EXPERTS = 1024


def route(logits: Tensor, num_chosen: int, normalize: bool) -> Routed:
    routed = Routed(
        torch.empty(len(logits), num_chosen, dtype=torch.int32, device=logits.device),
        torch.empty(len(logits), num_chosen, dtype=torch.float32, device=logits.device),
    )
    route_into(routed, logits, normalize)
    return routed


def route_into(out: Routed, logits: Tensor, normalize: bool) -> None:
    """chosen [T, k] int32 and weights [T, k] float32 of logits [T, experts] of any float type."""
    num_rows, num_experts = logits.shape
    num_chosen = out.chosen.shape[1]
    assert num_chosen <= num_experts <= MOST_EXPERTS, (
        f"{num_chosen} of {num_experts} experts, of {MOST_EXPERTS} at most"
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
        PLACES=triton.next_power_of_2(num_chosen),
        VECTOR=vector,
        num_warps=max(1, block // 256),
        enable_fp_fusion=False,
    )


@triton.jit(do_not_specialize=["stride"])
def _route_kernel(
    chosen, weights, logits, stride,
    NORMALIZES: tl.constexpr, NUM_EXPERTS: tl.constexpr, BLOCK: tl.constexpr, NUM_CHOSEN: tl.constexpr,
    PLACES: tl.constexpr, VECTOR: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """One token: the largest of its logits is taken away again and again."""
    let_next_start(EARLY)
    row = tl.program_id(0).to(tl.int64)
    experts = tl.arange(0, BLOCK)
    places = tl.arange(0, PLACES)
    await_inputs(EARLY)
    source = logits + row * stride * VECTOR + experts
    x = tl.load(source, mask=experts < NUM_EXPERTS, other=float("-inf")).to(tl.float32)
    peak = tl.max(x, 0)
    total = tl.sum(tl.exp(x - peak), 0)
    order = tl.where(x == x, order_of(x), 0x7FFFFFFF)  # What is no number goes first, and number_of gives it back.
    order = tl.where(experts < NUM_EXPERTS, order, -0x80000000)
    taken = tl.zeros([PLACES], tl.int32)
    shares = tl.zeros([PLACES], tl.float32)
    for place in range(NUM_CHOSEN):
        largest = tl.max(order, 0)
        expert = tl.min(tl.where(order == largest, experts, BLOCK), 0)
        taken = tl.where(places == place, expert, taken)
        shares = tl.where(places == place, tl.exp(number_of(largest) - peak) / total, shares)
        order = tl.where(experts == expert, -0x80000000, order)
    if NORMALIZES:
        shares /= tl.sum(shares, 0)
    tl.store(chosen + row * NUM_CHOSEN + places, taken, mask=places < NUM_CHOSEN)
    tl.store(weights + row * NUM_CHOSEN + places, shares, mask=places < NUM_CHOSEN)
