"""Coupled verification changes no token: for every noise and every draft there can be, and with the draw itself."""

import itertools
from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
import torch

from archerfish.ops.reference.drawing import draw
from archerfish.speculation.draft import Draft
from archerfish.speculation.verification.rules import coupled
from tests.ops.draws import rows_of
from tests.speculation.enumeration import CHAINS, PARAMS, TREES, Target, Tokens, depth_of, drafted, name, random_row

NOISE = [np.array(order) for order in itertools.permutations((-0.6, 0.4, 2.1))]
"""At each position one of these. Together they make every order of three tokens the one that noise prefers."""


def tokens_by_noise(target: Target) -> Callable[[Tokens, int], int]:
    """What is drawn after what was written, with one of the noises."""

    @cache
    def drawn(written: Tokens, which: int) -> int:
        return int((target.after(written).log().numpy() + NOISE[which]).argmax())

    return drawn


@pytest.mark.parametrize("parents", CHAINS + TREES, ids=name)
def test_coupled_tokens_are_those_of_no_speculation_for_every_noise_and_every_draft(parents: Tokens) -> None:
    depth = depth_of(parents)
    drafts = [Draft(tokens, parents) for tokens in itertools.product(range(3), repeat=len(parents))]
    nodes = {draft: [(), *(drafted(draft, node) for node in range(len(draft)))] for draft in drafts}
    lengths, outcomes = set(), set()
    for number, params in enumerate(list(PARAMS.values())[: 2 if depth == 3 else None]):
        drawn = tokens_by_noise(Target(3, number, params))
        for noise in itertools.product(range(len(NOISE)), repeat=depth + 1):
            alone: Tokens = ()
            for which in noise:
                alone = (*alone, drawn(alone, which))
            outcomes.add(alone)
            for draft in drafts:
                path, token = coupled(draft, [drawn(written, noise[len(written)]) for written in nodes[draft]])
                assert (*nodes[draft][path[-1] + 1 if path else 0], token) == alone[: len(path) + 1]
                if len({*nodes[draft]}) == 1 + len(draft):  # Of equal siblings, only the first one's children are seen.
                    right = [written for written in nodes[draft][1:] if written == alone[: len(written)]]
                    assert len(path) == len(right), "a draft token that is right was left out"
                lengths.add(len(path))
    assert lengths == set(range(depth + 1)) and len(outcomes) > 3


def test_coupled_with_the_draw_itself_writes_what_it_writes_alone() -> None:
    """Logits go through the operation, as a step's do; draft tokens are right about half of the time."""
    vocabulary, first = 6, 10
    random, num_accepted = np.random.default_rng(0), 0

    def drawn(writings: list[Tokens], seed: int) -> list[int]:
        logits = torch.tensor([random_row(vocabulary, 0, seed, written) for written in writings])
        draw_params = [
            {"seed": seed, "position": first + len(written), "temperature": 0.5 + seed % 3, "top_k": seed % 5}
            for written in writings
        ]
        return draw(logits, rows_of(*draw_params)).tokens.tolist()

    for seed in range(60):
        alone: Tokens = ()
        while len(alone) < 6:
            alone = (*alone, *drawn([alone], seed))
        written: Tokens = ()
        while len(written) < 6:
            parents = (CHAINS + TREES)[random.integers(len(CHAINS + TREES))]
            depths = Draft((0,) * len(parents), parents).depths
            truth = [(*alone, 0, 0, 0)[len(written) + depth - 1] for depth in depths]
            draft = Draft(tuple(t if random.random() < 0.6 else int(random.integers(6)) for t in truth), parents)
            nodes = [written, *((*written, *drafted(draft, node)) for node in range(len(draft)))]
            path, token = coupled(draft, drawn(nodes, seed))
            written = (*written, *(draft.tokens[node] for node in path), token)
            num_accepted += len(path)
        assert written[:6] == alone[:6]
    assert num_accepted > 60
