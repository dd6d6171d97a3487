"""A sequence knows its limits, its place in line and its seed from its request alone."""

from hypothesis import given
from hypothesis import strategies as st

from archerfish.request import Request
from archerfish.scheduling.sequence import Sequence, SequenceFacts, sequence_seed
from tests.scheduling.steps import request


def sequence(one: Request) -> Sequence:
    return Sequence(one, 0, 0, 0, SequenceFacts(block_size=4, max_model_len=32, eos_token_ids=(1, 2)))


@given(seed=st.integers(0, 2**64 - 1))
def test_siblings_draw_from_different_seeds_that_fit_64_bits(seed: int) -> None:
    seeds = [sequence_seed(seed, index) for index in range(64)]
    assert seeds[0] == seed
    assert len(set(seeds)) == 64
    assert all(0 <= one < 2**64 for one in seeds)


def test_neighbouring_requests_do_not_share_the_seeds_of_their_siblings() -> None:
    seeds = [sequence_seed(seed, index) for seed in range(200) for index in range(8)]
    assert len(set(seeds)) == len(seeds)


def test_limits_come_from_the_request_and_the_context() -> None:
    def limit(max_tokens: int | None) -> int:
        return sequence(request("a", 10, max_tokens=max_tokens)).length_limit

    assert (limit(5), limit(22), limit(23), limit(None)) == (15, 32, 32, 32)


def test_todo_is_what_is_not_computed() -> None:
    one = sequence(request("a", 10))
    assert one.todo == 10
    # A step in flight computes all of it and draws a token that is not known yet.
    one.computed = 10
    one.length += 1
    assert one.todo == 1
    assert len(one.tokens) == 10


def test_stop_tokens_are_the_requests_and_the_models_unless_it_ignores_them() -> None:
    def stops(ignore_eos: bool) -> frozenset[int]:
        return sequence(request("a", 3, ignore_eos=ignore_eos, stop_token_ids=(8,))).stop_token_ids

    assert stops(False) == {1, 2, 8}
    assert stops(True) == {8}
