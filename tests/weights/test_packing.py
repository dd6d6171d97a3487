"""Experts in packed models: each in the run-time format, routers in full, and no more bytes than were counted."""

from typing import Any

import pytest
import torch

from archerfish.arch.cost import num_parameters, num_router_parameters
from archerfish.engine.models import mean_weight_bytes
from archerfish.models.decoder import Decoder, Experts
from archerfish.models.families import Fields, find_family
from archerfish.ops import KernelTarget, choose_ops, implementations
from archerfish.ops.cpu.program import Format
from archerfish.ops.packed import PackedExperts, PackedWeight
from archerfish.quant import WeightFormat
from archerfish.weights.load import random_weights
from archerfish.weights.packing import Packer
from tests.checkpoints import CONFIG
from tests.ops.cpu.native import KERNELS, native, needs_native

pytestmark = needs_native

EXPERTS = {
    **CONFIG,
    "model_type": "mixtral",
    "hidden_size": 128,
    "intermediate_size": 192,
    "head_dim": 32,
    "num_local_experts": 6,
    "num_experts_per_tok": 2,
    "sliding_window": None,
}
FORMATS = [
    WeightFormat(name="none"),
    WeightFormat(name="int8"),
    WeightFormat(name="w8a8"),
    WeightFormat(name="int4", group=32),
    WeightFormat(name="int4", group=64, zero_points=True),
]


def packed_model(weight_format: WeightFormat, keep_full: dict[str, torch.Tensor] | None = None) -> Decoder:
    arch = find_family(EXPERTS).read(Fields(EXPERTS))
    ops, _ = choose_ops(KernelTarget(device="cpu", dtype="bfloat16"), implementations(native(KERNELS[0])))
    with torch.device("meta"):
        model = Decoder(arch, ops, 16).to(torch.bfloat16)
    packer = Packer(model, weight_format)

    def keep(name: str, tensor: torch.Tensor) -> None:
        if keep_full is not None:
            keep_full[name] = tensor.clone()
        packer(name, tensor)

    random_weights(model, 0, keep)
    return model


def bytes_of(model: Decoder) -> int:
    held: dict[int, Any] = {}
    for module in model.modules():
        for thing in (*vars(module).values(), *module.parameters(recurse=False)):
            if isinstance(thing, PackedWeight | PackedExperts | torch.nn.Parameter):
                held[id(thing)] = thing
    return sum(thing.nbytes for thing in held.values())


@pytest.mark.parametrize("weight_format", FORMATS, ids=str)
def test_every_expert_is_packed_as_a_matrix_of_its_own(weight_format: WeightFormat) -> None:
    full: dict[str, torch.Tensor] = {}
    layer = packed_model(weight_format, full).layers[1].mlp
    assert isinstance(layer, Experts)
    for name, found in (("up", layer.up), ("down", layer.down)):
        weights = full[f"layers.1.mlp.{name}"]
        assert isinstance(found, PackedExperts) and found.shape == weights.shape
        for expert, weight in enumerate(weights):
            alone = weight_format.pack(weight)
            assert torch.equal(found.data[expert], alone.data)
            assert (found.scales is None) == (alone.scales is None)
            assert alone.scales is None or (
                found.scales is not None and torch.equal(found.scales[expert], alone.scales)
            )


@pytest.mark.parametrize("weight_format", FORMATS, ids=str)
def test_routers_are_not_rounded(weight_format: WeightFormat) -> None:
    full: dict[str, torch.Tensor] = {}
    layer = packed_model(weight_format, full).layers[0].mlp
    assert isinstance(layer, Experts)
    router: Any = layer.router.weight
    assert router.format == (Format.FLOAT32 if weight_format.is_lossy else Format.BFLOAT16)
    read = native(KERNELS[0]).embed(torch.arange(6), router)
    assert torch.equal(read, full["layers.0.mlp.router.weight"].float())


@pytest.mark.parametrize("weight_format", FORMATS, ids=str)
def test_a_model_takes_the_bytes_that_were_counted(weight_format: WeightFormat) -> None:
    model = packed_model(weight_format)
    arch = model.arch
    counted = mean_weight_bytes(arch, weight_format, 2) * num_parameters(arch)
    # Beyond that: norms in float32, scales of int8, routers and words filled up to whole panels of 64.
    norms = 2 * 5 * 128
    filled = (64 - 6) * num_router_parameters(arch) // 6 * 4 + 2 * (-300 % 64) * 128 * 2
    scales = 4 * 2 * (6 * (2 * 192 + 128) + (128 + 2 * 64) + 128) + 4 * 2 * 320
    assert counted < bytes_of(model) <= counted + norms + filled + scales
