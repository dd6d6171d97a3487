"""Small draft heads, for tests that build, store or run them."""

from dataclasses import replace
from typing import Any

import torch
from torch import nn

from archerfish.arch import AttentionSpec, EagleSpec, LayerSpec, MedusaSpec, MlpSpec, NormSpec, RopeSpec
from archerfish.models.eagle import Eagle
from archerfish.models.layers import Embedding, Linear
from archerfish.models.medusa import Medusa
from archerfish.ops import KernelTarget, choose_ops

OPS = choose_ops(KernelTarget(device="cpu", dtype="float32")).ops
LAYER = LayerSpec(
    attention=AttentionSpec(
        num_heads=4, num_kv_heads=2, head_dim=16, scale=16**-0.5, rope=RopeSpec(theta=10_000.0, dim=16)
    ),
    feed_forward=MlpSpec(size=48),
)
EAGLE = EagleSpec(
    hidden_size=32,
    target_hidden_size=32,
    target_layers=(2, 3, 4),
    layer=LAYER,
    norm=NormSpec(eps=1e-5),
    vocab_size=23,
    target_vocab_size=61,
    has_embedding=False,
    norm_before_residual=False,
    max_positions=128,
)
MEDUSA = MedusaSpec(num_heads=3, num_layers=2, hidden_size=32, vocab_size=61, target_vocab_size=61, has_own_head=True)
LENGTH = 64


def filled(module: Any, seed: int = 0) -> Any:
    """With random numbers, norms around 1."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in module.parameters():
        scale = parameter.shape[-1] ** -0.5 if parameter.dim() > 1 else 0.3
        parameter.data.normal_(1.0 if parameter.dim() == 1 else 0.0, scale, generator=generator)
    return module


def eagle(spec: EagleSpec = EAGLE, table: nn.Module | None = None, **changes: Any) -> Eagle:
    spec = replace(spec, **changes)
    if table is None and not spec.has_embedding:
        table = filled(Embedding(spec.target_vocab_size, spec.hidden_size, OPS), 1)
    return filled(Eagle(spec, table, OPS, LENGTH))


def target_head(spec: MedusaSpec = MEDUSA, *, bias: bool = False) -> Linear:
    return filled(Linear(spec.hidden_size, spec.target_vocab_size, bias, OPS), 2)


def medusa(head: Linear | None = None, **changes: Any) -> Medusa:
    return filled(Medusa(replace(MEDUSA, has_own_head=head is None, **changes), head, OPS))
