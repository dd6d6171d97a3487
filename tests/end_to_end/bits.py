"""What an engine answered, for tests that compare one way to run a model with another."""

from collections.abc import Sequence
from typing import Any

import pytest

from archerfish import LLM, RequestOutput, SamplingParams


def answers(llm: LLM, prompts: Sequence[Any], params: SamplingParams) -> list[object]:
    """Tokens and the very log-probabilities: equal only if every bit was."""
    outputs = llm.generate(prompts, params, progress=False)
    return [(output.outputs[0].token_ids, output.outputs[0].logprobs) for output in outputs]


def assert_alike(expected: Sequence[RequestOutput], found: Sequence[RequestOutput]) -> None:
    """The same tokens, and nearly the same log-probabilities of the prompt."""
    for wanted, had in zip(expected, found, strict=True):
        assert had.outputs[0].token_ids == wanted.outputs[0].token_ids
        assert wanted.prompt_logprobs is not None and had.prompt_logprobs is not None
        for one, other in zip(wanted.prompt_logprobs[1:], had.prompt_logprobs[1:], strict=True):
            assert one is not None and other is not None
            for token in one:
                assert other[token].logprob == pytest.approx(one[token].logprob, abs=1e-4)
