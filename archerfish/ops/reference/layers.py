"""The operations of a layer apart from attention, in plain torch. Norms, rotation and routing compute in float32."""

import torch
import torch.nn.functional as F
from torch import Tensor

from archerfish.arch.arch import Activation
from archerfish.ops.signatures import Routed


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return F.linear(x, weight, bias)


def embed(tokens: Tensor, table: Tensor) -> Tensor:
    return F.embedding(tokens, table)


def add(x: Tensor, y: Tensor, factor: float) -> Tensor:
    return x + (y if factor == 1.0 else y * factor)


def scale(x: Tensor, factor: float) -> Tensor:
    return x * factor


def softcap(x: Tensor, cap: float) -> Tensor:
    return torch.tanh(x / cap) * cap


def rms_norm(x: Tensor, weight: Tensor, eps: float, weight_offset: float) -> Tensor:
    wide = x.float()
    wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (wide * (weight.float() + weight_offset)).to(x.dtype)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    return F.layer_norm(x, (x.shape[-1],), weight, bias, eps)


def rotate(x: Tensor, angles: Tensor) -> Tensor:
    half = angles.shape[-1] // 2
    first, second, rest = x[..., :half].float(), x[..., half : 2 * half].float(), x[..., 2 * half :]
    cos, sin = angles.unsqueeze(1).chunk(2, dim=-1)  # [T, 1, R/2]
    rotated = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)
    return torch.cat((rotated, rest), dim=-1) if rest.shape[-1] else rotated


def activate(x: Tensor, activation: Activation, gated: bool) -> Tensor:
    if gated:
        gate, up = x.chunk(2, dim=-1)
        return _nonlinear(gate, activation) * up
    return _nonlinear(x, activation)


def _nonlinear(x: Tensor, activation: Activation) -> Tensor:
    match activation:
        case "silu":
            return F.silu(x)
        case "gelu":
            return F.gelu(x)
        case "gelu_tanh":
            return F.gelu(x, approximate="tanh")
        case "relu":
            return F.relu(x)


def route(logits: Tensor, num_chosen: int, normalize: bool) -> Routed:
    logits = logits.float()
    # Unlike topk, a stable sort defines the order of equal logits.
    chosen = logits.sort(dim=-1, descending=True, stable=True).indices[:, :num_chosen]
    weights = torch.softmax(logits, dim=-1).gather(-1, chosen)
    return Routed(chosen, weights / weights.sum(-1, keepdim=True) if normalize else weights)


def experts(
    x: Tensor, gate_up: Tensor, down: Tensor, chosen: Tensor, weights: Tensor, activation: Activation
) -> Tensor:
    out = torch.zeros_like(x)
    for expert in torch.unique(chosen).tolist():
        token, choice = torch.where(chosen == expert)
        inner = activate(F.linear(x[token], gate_up[expert]), activation, gated=True)
        out.index_add_(0, token, (F.linear(inner, down[expert]) * weights[token, choice, None]).to(x.dtype))
    return out
