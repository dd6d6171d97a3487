"""Perch with smaller keys and values: one answer however it is run, near to the full one, and named what it is."""

import logging
from typing import Any

import pytest

from archerfish import LLM, SamplingParams
from archerfish.errors import ConfigError
from archerfish.scheduling.sequence import sequence_seed
from tests.ops.cpu.native import KERNELS, needs_native

SENTENCE = "April is the fourth month of the year. "
PROMPTS = [
    "Once upon a time",
    SENTENCE * 12,
    SENTENCE * 62,  # Longer than a span of keys.
    *(f"Story number {number}: there was a" for number in range(5)),
]
PARAMS = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True, logprobs=2)
SEEDED = {"temperature": 0.9, "max_tokens": 12, "ignore_eos": True, "logprobs": 2}


def answers(llm: LLM, prompts: list[str], params: SamplingParams = PARAMS) -> list[object]:
    """Tokens and the very log-probabilities: equal only if every bit was."""
    outputs = llm.generate(prompts, params, progress=False)
    return [(output.outputs[0].token_ids, output.outputs[0].logprobs) for output in outputs]


@needs_native
@pytest.mark.parametrize("kv", ["auto", "int8"])
@pytest.mark.parametrize("block_size", [16, 64])
def test_one_answer_however_it_is_run(kv: str, block_size: int) -> None:
    settings: dict[str, Any] = {"kv_cache_dtype": kv, "block_size": block_size, "max_num_seqs": 16}
    with LLM(**settings, enable_prefix_caching=False) as llm:
        together = answers(llm, PROMPTS)
        assert [answers(llm, [prompt])[0] for prompt in PROMPTS] == together
    with LLM(**settings) as llm:
        assert answers(llm, PROMPTS) == together, "with a cold cache"
        assert answers(llm, PROMPTS) == together, "with a warm one"
    with LLM(**settings, max_num_batched_tokens=17, threads=1) as llm:
        assert answers(llm, PROMPTS) == together, "in chunks of 17, on one thread"


@needs_native
def test_int8_survives_preemption() -> None:
    params = SamplingParams(temperature=0.0, max_tokens=60, ignore_eos=True, logprobs=2)
    with LLM(kv_cache_dtype="int8", max_num_seqs=16) as llm:
        wanted = answers(llm, PROMPTS[3:], params)
        block_bytes = llm.assembly.cache_size.num_bytes // llm.assembly.cache_size.num_blocks
    crowded: dict[str, Any] = {"kv_cache_memory_bytes": 8 * block_bytes, "speculative_config": {"method": "off"}}
    with LLM(kv_cache_dtype="int8", max_model_len=96, **crowded) as llm:
        assert answers(llm, PROMPTS[3:], params) == wanted
        assert llm.assembly.engine.scheduler.num_preemptions > 0


@needs_native
def test_int8_of_answers_that_share_a_prompt() -> None:
    """They copy the block that they write to."""
    prompt = SENTENCE * 3
    with LLM(kv_cache_dtype="int8", max_num_seqs=8) as llm:
        output = llm.generate(prompt, SamplingParams(n=4, seed=7, **SEEDED), progress=False)[0]
        for index, answer in enumerate(output.outputs):
            single = answers(llm, [prompt], SamplingParams(seed=sequence_seed(7, index), **SEEDED))[0]
            assert single == (answer.token_ids, answer.logprobs)


@needs_native
@pytest.mark.skipif(len(KERNELS) < 2, reason="this CPU runs one set of kernels")
def test_every_instruction_set_gives_the_same_answer() -> None:
    told = []
    for kernels in KERNELS:
        with LLM(quantization="int8", kv_cache_dtype="int8", kernels=kernels, max_num_seqs=16) as llm:
            told.append(answers(llm, PROMPTS[:4]))
    assert told[0] == told[1]


def logprobs_of(prompt: str, **settings: Any) -> list[float]:
    params = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0)
    with LLM(dtype="float32", max_num_seqs=2, **settings) as llm:
        [output] = llm.generate(prompt, params, progress=False)
    assert output.prompt_logprobs is not None and output.prompt_token_ids is not None
    pairs = zip(output.prompt_token_ids[1:], output.prompt_logprobs[1:], strict=True)
    return [entries[token].logprob for token, entries in pairs if entries is not None]


@needs_native
@pytest.mark.parametrize("kv", ["int8", "bfloat16"])
def test_the_reference_stores_the_same(kv: str) -> None:
    """Near, not equal: a number between two steps may be rounded to either."""
    native, reference = (logprobs_of(PROMPTS[1], kv_cache_dtype=kv, kernels=name) for name in ("auto", "reference"))
    assert native == pytest.approx(reference, abs=0.02)
    assert native != logprobs_of(PROMPTS[1]), "it is lossy"


@pytest.mark.parametrize("kv", ["int8", "bfloat16"])
def test_smaller_keys_and_values_change_little(kv: str) -> None:
    full, smaller = logprobs_of(PROMPTS[1]), logprobs_of(PROMPTS[1], kv_cache_dtype=kv)
    assert sum(smaller) / len(smaller) == pytest.approx(sum(full) / len(full), abs=0.02)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({}, "at once, bfloat16"),
        ({"kv_cache_dtype": "int8"}, "at once, int8 (lossy)"),
        ({"dtype": "float32", "kv_cache_dtype": "bfloat16"}, "at once, bfloat16 (lossy)"),
        ({"kv_cache_dtype": "float32"}, "at once, float32"),
    ],
)
def test_the_log_names_what_is_lossy(caplog: pytest.LogCaptureFixture, settings: dict[str, Any], says: str) -> None:
    with caplog.at_level(logging.INFO, "archerfish"), LLM("minnow", max_num_seqs=2, **settings):
        pass
    [line] = [record.getMessage() for record in caplog.records if record.getMessage().startswith("KV cache")]
    assert line.endswith(says)


def test_int8_leaves_room_for_nearly_twice_as_many_tokens_and_reads_nearly_half_as_much() -> None:
    sizes, read = [], []
    for kv in ("auto", "int8"):
        with LLM("minnow", kv_cache_dtype=kv, kv_cache_memory_bytes=64 << 20) as llm:
            assert llm.assembly.engine.cost is not None
            sizes.append(llm.assembly.cache_size.num_tokens)
            read.append(sum(reach.bytes_per_key for reach in llm.assembly.engine.cost.reaches))
            head_dim = llm.assembly.arch.layers[0].attention.head_dim
    less = (1 + 4 / head_dim) / 2
    assert sizes[0] / sizes[1] == pytest.approx(less, rel=0.01)
    assert read[1] / read[0] == pytest.approx(less)


def test_other_formats_are_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="'fp4' is not one of auto, float32, bfloat16, int8, fp8"):
        LLM(kv_cache_dtype="fp4")
