"""EAGLE unrolled over all places at once against the head run token after token, as it is served."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from archerfish.compress.drafters.eagle import EagleDrafter, eagle_spec, line_mask
from archerfish.compress.drafters.target import TargetReading
from archerfish.models.attention import plain_attention
from archerfish.models.decoder import Decoder
from archerfish.models.eagle import Eagle
from archerfish.models.families import Fields, find_family
from archerfish.ops import KernelTarget, choose_ops
from tests.compress.drafters.walkers import CONFIG, options

LENGTH, DEPTHS = 9, 4


@pytest.fixture
def drafter(tmp_path) -> EagleDrafter:
    torch.manual_seed(0)
    ops = choose_ops(KernelTarget(device="cpu", dtype="float32")).ops
    target = Decoder(find_family(CONFIG).read(Fields(CONFIG)), ops, 64)
    spec = replace(eagle_spec(target.arch, options(tmp_path, method="eagle"), None), norm_before_residual=True)
    head = Eagle(spec, target.embedding, ops, 64)
    for parameter in (*head.parameters(), *target.embedding.parameters()):
        parameter.data.normal_(0.0, 0.4)
    return EagleDrafter(head, DEPTHS, "walker")


def _one_after_the_other(head: Eagle, tokens: Tensor, taps: Tensor, start: int) -> list[Tensor]:
    """Return the head's states for drafts after a start, with a cache that is written as it goes on."""
    cache: list[tuple[Tensor, Tensor]] = []

    def attend(layer: int, q: Tensor, k: Tensor | None, v: Tensor | None) -> Tensor:
        assert layer == 0 and k is not None and v is not None
        cache.append((k, v))
        keys, values = (torch.cat([pair[which] for pair in cache]) for which in (0, 1))
        return plain_attention(q, keys, values, head.spec.layer.attention)

    fed = head.joined(taps[: start + 1])
    states = head(tokens[1 : start + 2], torch.arange(start + 1), fed, attend)[-1:]
    given = [states]
    for depth in range(1, DEPTHS):
        at = start + depth
        if at + 1 == len(tokens):
            break
        states = head(tokens[at + 1 : at + 2], torch.tensor([at]), states, attend)
        given.append(states)
    return given


def test_all_places_at_once_are_each_line_by_itself(drafter: EagleDrafter) -> None:
    head = drafter.module
    tokens = torch.randint(head.spec.target_vocab_size, (2, LENGTH))
    taps = torch.randn(2, LENGTH, len(drafter.taps) * head.spec.target_hidden_size)
    found = list(drafter.states(TargetReading(tokens, torch.zeros(2, LENGTH, 1), taps), DEPTHS))
    assert [one.shape[1] for one in found] == [LENGTH - 1 - depth for depth in range(DEPTHS)]
    for row in range(2):
        for start in range(LENGTH - 1):
            for depth, state in enumerate(_one_after_the_other(head, tokens[row], taps[row], start)):
                assert torch.allclose(found[depth][row, start], state[0], atol=1e-4), (row, start, depth)


def test_gradients_reach_the_first_depth_through_the_last(drafter: EagleDrafter) -> None:
    taps = torch.randn(1, LENGTH, len(drafter.taps) * drafter.module.spec.target_hidden_size, requires_grad=True)
    reading = TargetReading(torch.zeros(1, LENGTH, dtype=torch.int64), torch.zeros(1, LENGTH, 1), taps)
    *_, last = drafter.states(reading, DEPTHS)
    last[0, 2].sum().backward()
    assert taps.grad is not None
    moved = taps.grad[0].abs().sum(-1) > 0
    # The draft after the third token is fed from the first three, and from nothing after them.
    assert moved.tolist() == [True] * 3 + [False] * (LENGTH - 3)


def test_a_line_sees_the_past_and_itself() -> None:
    assert line_mask(3, 1, torch.device("cpu")).int().tolist() == [
        [0, 0, 0, 1, 0, 0],
        [1, 0, 0, 0, 1, 0],
        [1, 1, 0, 0, 0, 1],
    ]
