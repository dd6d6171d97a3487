"""Weights for a GPU: matrices and experts of few bits, and what stays in full precision."""

from dataclasses import replace

import pytest
import torch

from archerfish.arch import Arch, ExpertsSpec
from archerfish.models.decoder import Decoder
from archerfish.ops import KernelTarget, choose_ops
from archerfish.ops.triton.device_weight import DeviceExperts, DeviceWeight
from archerfish.quant import WeightFormat
from archerfish.quant.device_weights import device_weight
from archerfish.weights.device_packing import DevicePacker
from archerfish.weights.load import random_weights
from tests.execution.small_models import arch, layer

FORMATS = [WeightFormat(name=name, group=32) for name in ("int8", "w8a8", "int4", "fp8")]


def with_experts() -> Arch:
    return arch(replace(layer(), feed_forward=ExpertsSpec(num_experts=3, num_experts_per_token=2, size=32)))


def packed(weight_format: WeightFormat | None) -> Decoder:
    ops = choose_ops(KernelTarget(device="cpu", dtype="float32")).ops
    with torch.device("cpu" if weight_format is None else "meta"):
        model = Decoder(with_experts(), ops, 32).requires_grad_(False)
    random_weights(model, 0, None if weight_format is None else DevicePacker(model, weight_format))
    return model


@pytest.mark.parametrize("weight_format", FORMATS, ids=str)
def test_every_expert_is_rounded_as_a_matrix_alone(weight_format: WeightFormat) -> None:
    full, model = packed(None), packed(weight_format)
    for name in ("up", "down"):
        stored, wanted = getattr(model.layers[0].mlp, name), getattr(full.layers[0].mlp, name)
        assert isinstance(stored, DeviceExperts) and stored.shape == wanted.shape
        for index, matrix in enumerate(wanted):
            alone, found = device_weight(matrix, weight_format), stored.expert(index)
            assert (found.num_outputs, found.num_inputs, found.group) == (len(matrix), matrix.shape[1], alone.group)
            assert torch.equal(found.data.view(torch.uint8), alone.data.view(torch.uint8))
            assert torch.equal(found.scales, alone.scales)


@pytest.mark.parametrize("weight_format", FORMATS, ids=str)
def test_what_chooses_experts_stays_in_full(weight_format: WeightFormat) -> None:
    full, model = packed(None), packed(weight_format)
    assert torch.equal(model.layers[0].mlp.router.weight, full.layers[0].mlp.router.weight)
    assert isinstance(model.layers[0].attention.qkv.weight, DeviceWeight)
