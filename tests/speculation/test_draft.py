"""Trees of guesses: who hangs on whom."""

from dataclasses import replace

import pytest
import torch

from archerfish.speculation.draft import NO_DRAFT, ROOT, Draft

TREE = Draft((5, 6, 7, 8, 9), (ROOT, 0, ROOT, 2, 0))


def test_a_chain_is_a_tree_without_branches() -> None:
    chain = Draft.chain([4, 5, 6])
    assert chain.is_chain and chain.parents == (ROOT, 0, 1)
    assert chain.path(2) == [0, 1, 2] and chain.depths == [1, 2, 3]
    assert NO_DRAFT.is_chain and not len(NO_DRAFT)


def test_children_are_in_order_and_paths_lead_down() -> None:
    assert not TREE.is_chain
    assert TREE.children(ROOT) == [0, 2] and TREE.children(0) == [1, 4] and TREE.children(3) == []
    assert TREE.path(3) == [2, 3] and TREE.path(ROOT) == [] and TREE.depths == [1, 2, 1, 2, 2]


def test_a_part_of_a_tree_is_a_tree() -> None:
    assert TREE.main_chain() == Draft.chain([5, 6]) and NO_DRAFT.main_chain() == NO_DRAFT
    assert TREE.truncated(3) == Draft((5, 6, 7), (ROOT, 0, ROOT)) and TREE.truncated(9) is TREE


def test_proposal_distributions_go_with_their_tokens() -> None:
    drawn = replace(TREE, proposals=torch.arange(10.0).view(5, 2))
    assert drawn == TREE and NO_DRAFT.proposals is None and TREE.truncated(2).proposals is None
    assert proposals(drawn.truncated(2)) == [[0.0, 1.0], [2.0, 3.0]]
    assert proposals(drawn.main_chain()) == [[0.0, 1.0], [2.0, 3.0]]
    aside = Draft((5, 6, 7), (ROOT, ROOT, 0), proposals=torch.arange(3.0)[:, None])
    assert proposals(aside.main_chain()) == [[0.0], [2.0]]


def proposals(draft: Draft) -> list[list[float]]:
    assert isinstance(draft.proposals, torch.Tensor)
    return draft.proposals.tolist()


@pytest.mark.parametrize(("tokens", "parents"), [((1,), (0,)), ((1, 2), (ROOT,)), ((1,) * 64, tuple(range(-1, 63)))])
def test_what_is_no_tree_is_refused(tokens: tuple[int, ...], parents: tuple[int, ...]) -> None:
    with pytest.raises(AssertionError):
        Draft(tokens, parents)
