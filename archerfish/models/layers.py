"""The modules with weights that a decoder is made of. Each holds parameters and calls one operation."""

import torch
from torch import Tensor, nn

from archerfish.arch.arch import NormSpec
from archerfish.ops.signatures import Ops


class Linear(nn.Module):
    def __init__(self, in_features: int, out_features: int, bias: bool, ops: Ops) -> None:
        super().__init__()
        self.linear = ops.linear
        self.weight = nn.Parameter(torch.empty(out_features, in_features))
        self.bias = nn.Parameter(torch.empty(out_features)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x, self.weight, self.bias)


class Embedding(nn.Module):
    def __init__(self, num_rows: int, width: int, ops: Ops) -> None:
        super().__init__()
        self.embed = ops.embed
        self.weight = nn.Parameter(torch.empty(num_rows, width))

    def forward(self, rows: Tensor) -> Tensor:
        return self.embed(rows, self.weight)


class Norm(nn.Module):
    def __init__(self, spec: NormSpec, width: int, ops: Ops) -> None:
        super().__init__()
        self.spec = spec
        self.rms_norm, self.layer_norm = ops.rms_norm, ops.layer_norm
        self.weight = nn.Parameter(torch.empty(width))
        self.bias = nn.Parameter(torch.empty(width)) if spec.kind == "layer" else None

    def forward(self, x: Tensor) -> Tensor:
        if self.bias is not None:
            return self.layer_norm(x, self.weight, self.bias, self.spec.eps)
        return self.rms_norm(x, self.weight, self.spec.eps, self.spec.weight_offset)


class SharedModule:
    """A module that another one owns: called, but not trained, packed or saved with the module that shares it."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def __call__(self, x: Tensor) -> Tensor:
        out: Tensor = self.module(x)
        return out
