"""What computing costs, against sums worked out by hand."""

import pytest

from archerfish.bench.cost import costs, dollars, dollars_per_million


def test_two_dollars_an_hour_at_a_hundred_tokens_a_second() -> None:
    assert dollars_per_million(100, 2.0) == pytest.approx(5.56, abs=0.005)


def test_a_thousand_requests_of_two_hundred_tokens() -> None:
    """200,000 tokens at 100 a second are 2,000 seconds; 1,000 prompts at 100 a minute are 10 minutes."""
    decode = 1000 * 200 * dollars_per_million(100, 2.0) / 1e6
    prefill = dollars(1000 / (100 / 60), 2.0)
    assert decode == pytest.approx(1.11, abs=0.005)
    assert prefill == pytest.approx(0.33, abs=0.005)
    assert decode + prefill == pytest.approx(dollars(2000 + 600, 2.0))


def test_a_run_with_prefill_and_decode_apart() -> None:
    """The same as one run: 2,600 seconds, of which 600 for prompts."""
    found = costs(
        2600, 2.0, num_requests=1000, num_input_tokens=500_000, num_output_tokens=200_000, prefill_share=600 / 2600
    )
    assert found.total == pytest.approx(1.444, abs=0.001)
    assert found.per_request == pytest.approx(0.001444, abs=1e-6)
    assert found.per_thousand_requests == pytest.approx(1.444, abs=0.001)
    assert found.per_million_tokens == pytest.approx(1.444 / 0.7, abs=0.001)
    assert found.per_million_output_tokens_in_all == pytest.approx(1.444 / 0.2, abs=0.003)
    assert found.per_million_input_tokens == pytest.approx(0.3333 / 0.5, abs=0.001)
    assert found.per_million_output_tokens == pytest.approx(5.56, abs=0.005)


def test_unknown_figures_are_none() -> None:
    found = costs(60, 3.0, num_requests=0, num_input_tokens=0, num_output_tokens=0, prefill_share=None)
    assert found.total == pytest.approx(0.05)
    assert (found.per_request, found.per_thousand_requests, found.per_million_tokens) == (None, None, None)
    assert found.per_million_output_tokens_in_all is None
    assert (found.per_million_input_tokens, found.per_million_output_tokens) == (None, None)
