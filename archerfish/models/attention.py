"""Attention over contiguous keys and values, for decoders that run without a paged cache."""

import torch
import torch.nn.functional as F
from torch import Tensor

from archerfish.arch.arch import AttentionSpec


def plain_attention(q: Tensor, k: Tensor, v: Tensor, spec: AttentionSpec) -> Tensor:
    """Attend causally with the last tokens q [T, H, D] to all k and v [S, G, D] -> [T, H, D]."""
    return batched_attention(q.unsqueeze(0), k.unsqueeze(0), v.unsqueeze(0), spec)[0]


def batched_attention(q: Tensor, k: Tensor, v: Tensor, spec: AttentionSpec) -> Tensor:
    """Attend within each of several rows of equal length: q [rows, T, H, D], k and v [rows, S, G, D]."""
    num_queries, num_keys = q.shape[1], k.shape[1]
    if num_queries == 1 and spec.window is not None:
        k, v = k[:, -spec.window :], v[:, -spec.window :]
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))  # [rows, heads, tokens, D]
    mask = None if num_queries == 1 else _visible(num_queries, num_keys, spec.window, q.device)
    if spec.softcap is None:
        # Expressed by is_causal, plain causality has a faster kernel than a mask.
        causal = mask is not None and spec.window is None and num_queries == num_keys
        out = F.scaled_dot_product_attention(
            q, k, v, attn_mask=None if causal else mask, is_causal=causal, scale=spec.scale, enable_gqa=True
        )
        return out.transpose(1, 2)
    repeat = spec.num_heads // spec.num_kv_heads
    k, v = (x.repeat_interleave(repeat, dim=1).float() for x in (k, v))
    scores = torch.tanh(q.float() @ k.transpose(2, 3) * spec.scale / spec.softcap) * spec.softcap
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    return (torch.softmax(scores, dim=-1) @ v).transpose(1, 2).to(q.dtype)


def _visible(num_queries: int, num_keys: int, window: int | None, device: torch.device) -> Tensor:
    """Return [T, S] which keys each query may attend to."""
    positions = torch.arange(num_keys, device=device)
    queries = positions[-num_queries:, None]
    seen = positions <= queries
    return seen if window is None else seen & (positions > queries - window)
