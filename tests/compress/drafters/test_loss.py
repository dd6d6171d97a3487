"""The judgement of draft tokens against the same figures worked out token by token."""

import math

import pytest
import torch

from archerfish.compress.drafters.loss import judge, loss_of


def _softmax(row: list[float]) -> list[float]:
    powers = [math.exp(value) for value in row]
    return [power / sum(powers) for power in powers]


def _logits(seed: int, rows: int, words: int) -> torch.Tensor:
    return torch.randn(rows, words, generator=torch.Generator().manual_seed(seed)) * 2


@pytest.mark.parametrize("target_ids", [None, [1, 2, 5, 8]])
def test_figures_are_those_of_the_definitions(target_ids: list[int] | None) -> None:
    ids = target_ids or list(range(9))
    wanted, drafted = _logits(0, 30, 9), _logits(1, 30, len(ids))
    found = judge(wanted, drafted, None if target_ids is None else torch.tensor(ids))
    agreements = 0
    for row in range(30):
        p, q = _softmax(wanted[row].tolist()), dict(zip(ids, _softmax(drafted[row].tolist()), strict=True))
        assert found.acceptance[row].item() == pytest.approx(sum(min(p[x], q.get(x, 0.0)) for x in range(9)), rel=1e-5)
        divergence = sum(p[x] * math.log(p[x] / q[x]) for x in ids)
        assert found.divergence[row].item() == pytest.approx(divergence, rel=1e-4, abs=1e-6)
        same = p.index(max(p)) == max(q, key=q.__getitem__)
        assert found.agreement[row].item() == same
        agreements += same
    assert 0 < agreements < 30
    loss = loss_of(found, 0.25)
    assert torch.allclose(loss, 0.75 * (1 - found.acceptance) + 0.25 * found.divergence)


def test_gradients_raise_what_is_drafted_too_seldom() -> None:
    wanted, drafted = torch.tensor([[2.0, 0.0, 0.0]]), torch.zeros(1, 3, requires_grad=True)
    loss_of(judge(wanted, drafted, None), 0.0).sum().backward()
    assert drafted.grad is not None
    assert drafted.grad[0, 0] < 0 < drafted.grad[0, 1]


def test_tokens_that_the_target_rules_out_leave_gradients_finite() -> None:
    wanted = torch.tensor([[0.0, 0.0, -torch.inf]])
    drafted = torch.tensor([[1.0, 1.0, 1.0]], requires_grad=True)
    found = judge(wanted, drafted, None)
    loss_of(found, 0.5).sum().backward()
    assert found.divergence.item() == pytest.approx(math.log(3 / 2))
    assert drafted.grad is not None and drafted.grad.isfinite().all()
