"""Scores of draft tokens, computed from logits: how often they are accepted, and the loss of training."""

from typing import NamedTuple

import torch
from torch import Tensor


class Judgement(NamedTuple):
    """Scores of each draft token, in float32."""

    acceptance: Tensor
    """[rows] the sum over tokens of min(p, q): how often a sampled draft token is accepted, at temperature 1."""
    agreement: Tensor
    """[rows] 1 where both have the same likeliest token: a greedy draft token is accepted."""
    divergence: Tensor
    """[rows] Kullback-Leibler, over the tokens that can be drafted."""


def judge(wanted: Tensor, predicted: Tensor, target_ids: Tensor | None) -> Judgement:
    """Judge a drafter's logits [rows, its own vocabulary] by the target's [rows, vocabulary], both in float32.

    `target_ids` are the target's ids of the drafter's tokens; None if they are the same. Tokens that a drafter cannot
    draft have q = 0, and add nothing to the sum of minima.
    """
    log_p = wanted.log_softmax(-1)
    log_q = predicted.log_softmax(-1)
    best, likeliest = wanted.argmax(-1), predicted.argmax(-1)
    if target_ids is not None:
        log_p, likeliest = log_p[:, target_ids], target_ids[likeliest]
    p = log_p.exp()
    # A token that is impossible for the target adds nothing, whatever its probability for the drafter.
    divergence = torch.where(p > 0, p * (log_p - log_q), 0.0).sum(-1)
    return Judgement(torch.minimum(p, log_q.exp()).sum(-1), (best == likeliest).float(), divergence)


def loss_of(judgement: Judgement, divergence_share: float) -> Tensor:
    """Return the loss, [rows]: draft tokens rejected, plus a share of the divergence."""
    return (1 - divergence_share) * (1 - judgement.acceptance) + divergence_share * judgement.divergence
