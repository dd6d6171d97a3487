"""What is measured against the same figures worked out place by place."""

from pathlib import Path

import pytest
import torch

from archerfish.compress.drafters import drafter as judging
from archerfish.compress.drafters.batches import TrainingBatch
from archerfish.compress.drafters.draft_model import DraftModelTraining
from archerfish.compress.drafters.measure import measure
from archerfish.compress.drafters.target import DraftingTarget, read_rows
from archerfish.models.decoder import Decoder
from archerfish.models.families import Fields, find_family
from archerfish.ops import KernelTarget, choose_ops
from tests.compress.drafters.walkers import CONFIG, VOCAB_SIZE

LENGTH, DEPTHS = 8, 3


def _model(seed: int) -> Decoder:
    ops = choose_ops(KernelTarget(device="cpu", dtype="float32")).ops
    model = Decoder(find_family(CONFIG).read(Fields(CONFIG)), ops, 64)
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.data.normal_(0.0, 0.3, generator=generator)
    return model


def _batch() -> TrainingBatch:
    tokens = torch.randint(VOCAB_SIZE, (2, LENGTH), generator=torch.Generator().manual_seed(5))
    own = torch.zeros(2, LENGTH, dtype=torch.bool)
    own[0, 2:] = True
    own[1, 1:5] = True
    return TrainingBatch(tokens, own)


@pytest.mark.parametrize("logits_at_once", [1 << 27, 3 * VOCAB_SIZE], ids=["whole", "in pieces"])
def test_figures_are_those_of_the_definitions(monkeypatch: pytest.MonkeyPatch, logits_at_once: int) -> None:
    monkeypatch.setattr(judging, "_MOST_LOGITS", logits_at_once)
    wanted, drafting, batch = _model(0), _model(0), _batch()
    for parameter, noise in zip(drafting.parameters(), _model(1).parameters(), strict=True):
        parameter.data += noise.data / 8
    found = measure(DraftModelTraining(drafting, {}, Path()), DraftingTarget(wanted, ()), [batch], DEPTHS)
    with torch.no_grad():
        p, q = (model.logits(read_rows(model, batch.tokens)).softmax(-1) for model in (wanted, drafting))
    accepted = torch.minimum(p, q).sum(-1)
    agreed = (p.argmax(-1) == q.argmax(-1)).float()
    assert found.num_predictions == 6 + 4
    greedy = sampled = 1.0
    for depth, score in enumerate(found.depths):
        # A draft token of this depth is for the position start + 2 + depth.
        places = [(row, at) for row in range(2) for at in range(depth + 1, LENGTH) if batch.own[row, at]]
        assert score.acceptance == pytest.approx(sum(float(accepted[one]) for one in places) / len(places), rel=1e-5)
        assert score.agreement == pytest.approx(sum(float(agreed[one]) for one in places) / len(places), rel=1e-5)
        chains = [(row, at) for row, at in places if batch.own[row, at - depth]]
        for values, which in ((agreed, "greedy"), (accepted, "sampled")):
            mean = sum(float(values[row, at - depth : at + 1].prod()) for row, at in chains) / len(chains)
            greedy, sampled = (greedy + mean, sampled) if which == "greedy" else (greedy, sampled + mean)
        assert score.greedy_tokens == pytest.approx(greedy, rel=1e-5)
        assert score.sampled_tokens == pytest.approx(sampled, rel=1e-5)
    assert 0 < found.depths[0].agreement < 1


def test_a_model_drafts_for_itself() -> None:
    model = _model(2)
    found = measure(DraftModelTraining(model, {}, Path()), DraftingTarget(model, ()), [_batch()], DEPTHS)
    for depth, score in enumerate(found.depths, 1):
        assert score.agreement == 1 and score.acceptance == pytest.approx(1)
        assert score.greedy_tokens == 1 + depth and score.sampled_tokens == pytest.approx(1 + depth)


def test_pieces_have_the_gradients_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    model, target = _model(3), DraftingTarget(_model(4), ())
    gradients = []
    for logits_at_once in (1 << 27, 3 * VOCAB_SIZE):
        monkeypatch.setattr(judging, "_MOST_LOGITS", logits_at_once)
        model.zero_grad()
        for found in judging.judged(DraftModelTraining(model, {}, Path()), target, _batch(), 1):
            (found.acceptance.sum() + found.divergence.sum()).backward()
        gradients.append([parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None])
    whole, pieces = gradients
    assert whole and len(whole) == len(pieces)
    assert all(torch.allclose(one, other, rtol=1e-3, atol=1e-5) for one, other in zip(whole, pieces, strict=True))
    assert any(one.abs().max() > 0.01 for one in whole)
