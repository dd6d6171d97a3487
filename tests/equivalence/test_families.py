"""Every family gives transformers' logits and transformers' tokens, however the work is cut up."""

import json
from typing import Any

import pytest
import torch

from archerfish import LLM, SamplingParams
from archerfish.arch.cost import num_parameters
from archerfish.kvcache.layout import kv_layout
from archerfish.kvcache.tables import blocks_held
from archerfish.models.families import Fields, find_family
from tests.equivalence.cases import MAX_MODEL_LEN, NUM_NEW_TOKENS, VOCAB_SIZE, Reference

ODD_CHUNKS = {8: 37, 16: 29, 32: 101}
"""Tokens a step for each block size: prompts are cut at places that no block or prompt shares."""

GREEDY = SamplingParams(temperature=0.0, max_tokens=NUM_NEW_TOKENS, ignore_eos=True)


def engine(family: Reference, **settings: Any) -> LLM:
    usual = {"skip_tokenizer_init": True, "dtype": "float32", "threads": 1, "max_num_seqs": 8, "check_invariants": True}
    return LLM(str(family.directory), **{**usual, "max_model_len": MAX_MODEL_LEN, **settings})


def greedy_tokens(llm: LLM, family: Reference) -> list[list[int]]:
    return [output.outputs[0].token_ids for output in llm.generate(family.prompts, GREEDY, progress=False)]


def test_parameters_are_counted_as_transformers_counts_them(family: Reference) -> None:
    config = json.loads((family.directory / "config.json").read_text())
    assert num_parameters(find_family(config).read(Fields(config))) == family.num_parameters


def check_logits(llm: LLM, family: Reference) -> None:
    """Log-probabilities of the whole vocabulary stand for the logits."""
    params = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=VOCAB_SIZE, logprobs=VOCAB_SIZE)
    for output, prompt, logits in zip(llm.generate(family.prompts, params), family.prompts, family.logits, strict=True):
        expected = torch.log_softmax(logits, dim=-1)
        assert output.prompt_logprobs is not None and output.outputs[0].logprobs is not None
        found = [*output.prompt_logprobs[1:], *output.outputs[0].logprobs]
        assert len(found) == len(prompt)
        for row, entries in zip(expected, found, strict=True):
            assert entries is not None
            ours = torch.tensor([entries[token].logprob for token in range(VOCAB_SIZE)])
            torch.testing.assert_close(ours, row, atol=1e-4, rtol=0)


def check_greedy_tokens(llm: LLM, family: Reference, prefix_caching: bool) -> None:
    assert greedy_tokens(llm, family) == family.greedy
    again = llm.generate(family.prompts, GREEDY)
    assert [output.outputs[0].token_ids for output in again] == family.greedy
    assert (again[-1].num_cached_tokens > 0) == prefix_caching


def test_logits_and_greedy_tokens_are_transformers(family: Reference) -> None:
    """Through the paged cache in odd chunks. With blocks of 16, native operations run models that have such heads."""
    llm = engine(family, block_size=16, max_num_batched_tokens=ODD_CHUNKS[16])
    check_greedy_tokens(llm, family, prefix_caching=True)
    check_logits(llm, family)


def test_prompt_logits_in_blocks_of_the_reference_operations_alone(representative: Reference) -> None:
    check_logits(engine(representative, block_size=8, max_num_batched_tokens=37), representative)


@pytest.mark.parametrize(
    ("block_size", "prefix_caching"), [(8, True), (8, False), (16, False), (32, True), (32, False)]
)
def test_greedy_tokens_whatever_the_blocks(representative: Reference, block_size: int, prefix_caching: bool) -> None:
    llm = engine(
        representative,
        block_size=block_size,
        max_num_batched_tokens=ODD_CHUNKS[block_size],
        enable_prefix_caching=prefix_caching,
    )
    check_greedy_tokens(llm, representative, prefix_caching)


def test_greedy_tokens_survive_preemption(representative: Reference) -> None:
    config = json.loads((representative.directory / "config.json").read_text())
    layout = kv_layout(find_family(config).read(Fields(config)))
    block_size, step_tokens = 8, 37
    # Half of what all need at their ends: prompts get in, but there is no room for their answers.
    lengths = [len(prompt) + NUM_NEW_TOKENS for prompt in representative.prompts]
    wanted = sum(blocks_held(length, layout.windows, block_size, step_tokens) for length in lengths)
    num_blocks = max(wanted // 2, blocks_held(MAX_MODEL_LEN, layout.windows, block_size, step_tokens))
    llm = engine(
        representative,
        block_size=block_size,
        max_num_batched_tokens=step_tokens,
        kv_cache_memory_bytes=num_blocks * layout.block_bytes(block_size, 4),
        speculative_config={"method": "off"},  # With accepted drafts, answers may end before any is preempted.
    )
    assert greedy_tokens(llm, representative) == representative.greedy
    assert llm.assembly.engine.scheduler.num_preemptions > 0
    assert llm.assembly.engine.scheduler.tables.pool.num_in_use == 0
