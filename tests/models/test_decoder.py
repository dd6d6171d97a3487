"""The decoder computes what every step needs once, not in each step."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from archerfish.arch import LayerSpec, MlpSpec
from archerfish.models.decoder import Decoder
from archerfish.ops import KernelTarget, choose_ops
from tests.arch.shapes import attention, uniform

MULTIPLIER = 1152**0.5  # 33.941 is 34 in bfloat16.


class NoHostValues(TorchDispatchMode):
    """Refuses to make tensors out of numbers on the host: on a GPU that is a copy, which cannot be captured."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        assert func not in (torch.ops.aten.lift_fresh.default, torch.ops.aten._to_copy.default), func
        return func(*args, **(kwargs or {}))


def decoder(dtype, multiplier):
    layer = LayerSpec(attention=attention(2, 1, 4), feed_forward=MlpSpec(size=8))
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        model = Decoder(uniform(32, 16, 1, layer, embedding_multiplier=multiplier), OPS, 64)
    finally:
        torch.set_default_dtype(before)
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        parameter.data.normal_(generator=generator)
    return model.requires_grad_(False)


OPS = choose_ops(KernelTarget(device="cpu", dtype="float32")).ops


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_embeddings_are_multiplied_by_a_number_rounded_to_the_working_format(dtype):
    model, seen = decoder(dtype, MULTIPLIER), []
    model.layers[0].register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    tokens = torch.arange(5)
    model(tokens, tokens, lambda layer, q, k, v: q)
    wanted = model.embedding.weight[:5] * torch.tensor(MULTIPLIER, dtype=dtype)
    assert seen[0].dtype == dtype
    assert torch.equal(seen[0], wanted)
    unrounded = model.embedding.weight[:5] * MULTIPLIER
    assert torch.equal(unrounded, wanted) == (dtype == torch.float32)


def test_a_step_makes_no_tensor_from_numbers_on_the_host():
    model, tokens = decoder(torch.float32, MULTIPLIER), torch.arange(5)
    with NoHostValues():
        model(tokens, tokens, lambda layer, q, k, v: q)


def test_the_multiplier_is_no_part_of_a_checkpoint():
    assert decoder(torch.float32, MULTIPLIER).state_dict().keys() == decoder(torch.float32, 1.0).state_dict().keys()
    assert "embedding_multiplier" not in decoder(torch.float32, MULTIPLIER).state_dict()
