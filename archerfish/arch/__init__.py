"""A model's shape and cost in numbers. Pure arithmetic: no torch, no files."""

from archerfish.arch.arch import (
    Activation,
    Arch,
    AttentionSpec,
    ExpertsSpec,
    LayerSpec,
    MlpSpec,
    NormSpec,
)
from archerfish.arch.heads import EagleSpec, MedusaSpec
from archerfish.arch.rope import RopeSpec

__all__ = [
    "Activation",
    "Arch",
    "AttentionSpec",
    "EagleSpec",
    "ExpertsSpec",
    "LayerSpec",
    "MedusaSpec",
    "MlpSpec",
    "NormSpec",
    "RopeSpec",
]
