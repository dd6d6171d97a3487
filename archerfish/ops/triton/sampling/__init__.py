"""Drawing tokens by Triton kernels."""

from archerfish.ops.triton.sampling.draw_tokens import DrawScratch, Kind, draw, draw_into, kind_of

__all__ = [
    "DrawScratch",
    "Kind",
    "draw",
    "draw_into",
    "kind_of",
]
