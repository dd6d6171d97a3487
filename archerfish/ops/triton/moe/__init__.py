"""Mixture-of-experts layers by Triton kernels: routing and the experts' matrix multiplications."""

from archerfish.ops.triton.moe.fused_moe import experts, why_not_experts
from archerfish.ops.triton.moe.router import route

__all__ = [
    "experts",
    "route",
    "why_not_experts",
]
