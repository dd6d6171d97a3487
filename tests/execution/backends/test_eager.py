"""A model run operation by operation takes trees of guesses."""

import pytest
import torch

from archerfish.execution.backends.eager import EagerModel
from archerfish.execution.step.rows import Rows
from archerfish.kvcache.layout import kv_layout
from archerfish.kvcache.storage import KVStorage
from archerfish.models.decoder import Decoder
from archerfish.ops import KernelTarget, choose_ops
from archerfish.weights.load import random_weights
from tests.execution.drafted import check_continuation, check_lines_of_model
from tests.execution.small_models import ARCHS, BLOCK_SIZE, LENGTH, NUM_BLOCKS
from tests.ops.trees import bushy, deep

OPS = choose_ops(KernelTarget(device="cpu", dtype="float32")).ops


def near(found: torch.Tensor, wanted: torch.Tensor) -> None:
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ARCHS)
def test_every_node_and_what_follows_gets_what_its_path_alone_would_give(name: str) -> None:
    arch = ARCHS[name]
    model = Decoder(arch, OPS, LENGTH)
    model.requires_grad_(False)
    random_weights(model, 0)
    layout = kv_layout(arch)
    storage = KVStorage(layout, NUM_BLOCKS, BLOCK_SIZE, torch.float32, "cpu", OPS)
    rows = Rows(2, LENGTH, len(layout.windows), BLOCK_SIZE)
    for trees in ((bushy(12), deep(5)), (deep(9), None)):
        check_lines_of_model(EagerModel(model, storage), rows, trees, near)
    check_continuation(EagerModel(model, storage), storage, rows, bushy(12), near)
