"""Medusa against its formulas in plain torch, with matrices of its own and with the target's."""

import torch
import torch.nn.functional as F
from torch import Tensor

from archerfish.models.medusa import Medusa
from tests.models.heads import medusa, target_head


def states() -> Tensor:
    return torch.randn(5, 32, generator=torch.Generator().manual_seed(5))


def plain(head: Medusa, number: int, x: Tensor) -> Tensor:
    for layer in range(head.spec.num_layers):
        prefix = f"heads.{number}.layers.{layer}."
        x = x + F.silu(F.linear(x, head.get_parameter(prefix + "weight"), head.get_parameter(prefix + "bias")))
    return x


@torch.no_grad()
def test_each_head_has_layers_and_a_matrix_of_its_own() -> None:
    head, x = medusa(), states()
    given = head(x)
    assert len(given) == 3 and not torch.allclose(given[0], given[1])
    for number, found in enumerate(given):
        torch.testing.assert_close(found, plain(head, number, x))
        matrix = head.get_parameter(f"outputs.{number}.weight")
        torch.testing.assert_close(head.logits(number, found), found @ matrix.T)
    assert len(head.vocabulary) == 3 and head.target_ids is None


@torch.no_grad()
def test_the_targets_head_serves_all_and_stays_the_targets() -> None:
    target = target_head(bias=True)
    head = medusa(target)
    given = head(states())
    for number, found in enumerate(given):
        torch.testing.assert_close(head.logits(number, found), F.linear(found, target.weight, target.bias))
    assert all(parameter is not target.weight for parameter in head.parameters())
    assert head.vocabulary == () and head.target_ids is None


@torch.no_grad()
def test_of_fewer_tokens_it_has_the_targets_rows() -> None:
    target = target_head(bias=True)
    head = medusa(target, vocab_size=4)
    ids = torch.tensor([60, 3, 17, 4])
    assert head.rows is not None and head.target_ids is not None
    for name, numbers in head.rows.parameters_of(ids).items():
        head.rows.linear.get_parameter(name).copy_(numbers)
    x = states()
    wanted = F.linear(x, target.weight, target.bias)[:, ids]
    for number in range(3):
        torch.testing.assert_close(head.logits(number, x), wanted)
    assert head.vocabulary == (head.rows.linear,)
    assert not head.rows.linear.weight.requires_grad


def test_what_is_its_own_can_be_trained_and_the_targets_stays() -> None:
    head = medusa(target_head().requires_grad_(False), vocab_size=4)
    sum(head.logits(number, x).logsumexp(dim=1).sum() for number, x in enumerate(head(states()))).backward()
    for name, parameter in head.named_parameters():
        assert (parameter.grad is not None and bool(parameter.grad.any())) == name.startswith("heads."), name
