"""Heads for perch that guess something, right or wrong: untrained ones, made in a moment."""

from pathlib import Path

import torch
from torch import nn

from archerfish.arch.heads import EagleSpec, MedusaSpec
from archerfish.config import EngineConfig
from archerfish.engine.models import load_decoder
from archerfish.models.eagle import Eagle
from archerfish.models.medusa import Medusa
from archerfish.ops import KernelTarget, choose_ops
from archerfish.weights.heads import choose_tokens, save_head

NUM_TOKENS = 512


def write_heads(directory: Path) -> None:
    """An EAGLE-3 head and three Medusa heads, in directories of their own."""
    perch = load_decoder(EngineConfig(model="perch", device="cpu", dtype="float32"))
    arch, ops = perch.arch, choose_ops(KernelTarget(device="cpu", dtype="float32")).ops
    # A few frequent tokens: an untrained head has to be lucky to guess one of thousands.
    tokens = torch.arange(NUM_TOKENS)
    spec = EagleSpec(
        hidden_size=arch.hidden_size,
        target_hidden_size=arch.hidden_size,
        target_layers=(1, 3, len(arch.layers)),
        layer=arch.layers[0],
        norm=arch.norm,
        vocab_size=NUM_TOKENS,
        target_vocab_size=arch.vocab_size,
        has_embedding=False,
        norm_before_residual=False,
        max_positions=arch.max_positions,
    )
    eagle = Eagle(spec, perch.embedding, ops, arch.max_positions)
    _fill(eagle)
    # It hands on what the target's last layer gave, and ends as the target does: now and then that is right.
    with torch.no_grad():
        width = arch.hidden_size
        eagle.joining.weight.zero_()
        eagle.joining.weight[:, 2 * width :] = torch.eye(width)
        eagle.norm.weight.copy_(perch.norm.weight)
        eagle.head.weight.copy_(perch.head.weight[:NUM_TOKENS])
    choose_tokens(eagle, tokens)
    save_head(eagle, directory / "eagle", "perch", {})
    medusa = Medusa(
        MedusaSpec(
            num_heads=3,
            num_layers=1,
            hidden_size=arch.hidden_size,
            vocab_size=NUM_TOKENS,
            target_vocab_size=arch.vocab_size,
            has_own_head=False,
        ),
        perch.head,
        ops,
    )
    _fill(medusa)
    choose_tokens(medusa, tokens)
    save_head(medusa, directory / "medusa", "perch", {})


def _fill(head: nn.Module) -> None:
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in head.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0.0, 0.02, generator=generator)
            else:
                parameter.fill_(1.0 if parameter.shape[0] == 384 else 0.0)
