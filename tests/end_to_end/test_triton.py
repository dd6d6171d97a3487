"""Whole models by Triton kernels: the reference's answers, and one answer however they are run.

Without a GPU a tiny model is run by Triton's interpreter; with one, perch, compiled and through graphs.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from archerfish import LLM, SamplingParams
from archerfish.errors import ConfigError
from archerfish.ops.triton.runtime.kernel_launch import INTERPRETED
from tests.checkpoints import CONFIG
from tests.end_to_end import bits

PROMPTS = [
    "Once upon a time",
    "April is the fourth month of the year. " * 12,
    "The fox ran into the forest. The hunter sat under an old oak tree. Then the rain came. Who ran?",
    *(f"Story number {number}: there was a" for number in range(40)),
]
EXPERTS = {
    "model_type": "mixtral",
    "hidden_size": 64,
    "num_local_experts": 5,
    "num_experts_per_tok": 2,
    "sliding_window": None,
}
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.fixture
def tiny(tmp_path: Path) -> dict[str, Any]:
    """Settings of a model with random weights."""
    path = tmp_path / "tiny.json"
    path.write_text(json.dumps({**CONFIG, "head_dim": 16}))
    return {
        "model": str(path),
        "load_format": "dummy",
        "skip_tokenizer_init": True,
        "device": "cpu",
        "dtype": "float16",
        "max_model_len": 64,
        "max_num_seqs": 2,
    }


def tokens(llm: LLM, prompts: list[Any], **params: Any) -> list[tuple[int, ...]]:
    asked = SamplingParams(**{"temperature": 0.0, "max_tokens": 3, "ignore_eos": True, **params})
    return [tuple(output.outputs[0].token_ids) for output in llm.generate(prompts, asked, progress=False)]


@pytest.mark.skipif(not INTERPRETED, reason="perch is tried instead")
def test_a_tiny_model_writes_what_the_reference_writes(tiny: dict[str, Any]) -> None:
    prompts = [[5, 6, 7, 8, 9], [11, 12, 13]]
    told = {}
    for kernels in ("reference", "triton"):
        with LLM(**tiny, kernels=kernels) as llm:
            told[kernels] = tokens(llm, prompts)
            if kernels == "triton":
                # What the host has a say in takes another way through the executor, and the same numbers.
                assert tokens(llm, prompts, logprobs=1, max_tokens=2) == [one[:2] for one in told[kernels]]
                assert tokens(llm, prompts[1:], repetition_penalty=1.0001, max_tokens=1) == [told[kernels][1][:1]]
    assert told["triton"] == told["reference"]


@pytest.mark.skipif(not INTERPRETED, reason="perch is tried instead")
def test_guesses_change_nothing(tiny: dict[str, Any]) -> None:
    prompts = [[5, 6, 7, 8, 5, 6], [11, 12, 11]]
    told = []
    for method in ("off", "suffix"):
        with LLM(**tiny, kernels="triton", speculative_config=_fixed(method, 2)) as llm:
            told.append(tokens(llm, prompts))
            assert bool(llm.assembly.engine.counts.num_drafts) == (method != "off")
    assert told[0] == told[1]


def _fixed(method: str, count: int) -> dict[str, Any]:
    """So many guesses in every step, whether they pay or not."""
    return {"method": method} if method == "off" else {"method": method, "num_speculative_tokens": count}


@pytest.mark.skipif(not INTERPRETED, reason="kernels for a GPU are asked to run on a CPU")
def test_what_a_gpu_cannot_do_is_refused_by_name(tiny: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="--quantization fp8 is for a GPU"):
        LLM(**{**tiny, "dtype": "float32"}, quantization="fp8")
    with pytest.raises(ConfigError, match="--kernels triton: heads of 8"):
        LLM(**tiny, kernels="triton", hf_overrides={"head_dim": 8})
    with pytest.raises(ConfigError, match="--kv-cache-dtype int8 is not for"):
        LLM(**tiny, kernels="triton", kv_cache_dtype="int8")


@pytest.mark.skipif(not INTERPRETED, reason="kernels for a GPU are asked to run on a CPU")
def test_widths_that_no_kernel_knows_are_refused_by_name(tiny: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="not a multiple of the group of 64; use a smaller --quantization-group"):
        LLM(**tiny, kernels="triton", quantization="int4", quantization_group=64)
    with pytest.raises(ConfigError, match="--quantization fp8: 72 inputs are not a multiple of 32; use --quant"):
        LLM(**tiny, kernels="triton", quantization="fp8", hf_overrides={"intermediate_size": 72})
    odd = {**EXPERTS, "intermediate_size": 72}
    with pytest.raises(ConfigError, match="an expert size of 72 is not a multiple of 16; use --kernels reference"):
        LLM(**tiny, kernels="triton", hf_overrides=odd)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # The interpreter's numpy, of 1 / 0 and the like.
@pytest.mark.parametrize("quantization", ["int4"] if INTERPRETED else ["int8", "w8a8", "int4", "fp8"])
def test_experts_of_few_bits_give_one_answer(tiny: dict[str, Any], quantization: str) -> None:
    settings = {**tiny, "kernels": "triton", "hf_overrides": EXPERTS}
    if not INTERPRETED:
        settings |= {"device": "cuda", "max_num_seqs": 16}
    prompts = [[5, 6, 7, 8, 9], [11, 12, 13]] if INTERPRETED else [[number, 9, 11] * 6 for number in range(3, 40)]
    asked = SamplingParams(temperature=0.0, max_tokens=2, ignore_eos=True, logprobs=2)
    if quantization == "int4":
        settings["quantization_group"] = 32
    with LLM(**settings, quantization=quantization, enable_prefix_caching=False) as llm:
        together = bits.answers(llm, prompts, asked)
        assert bits.answers(llm, prompts[1:2], asked) == together[1:2]


@needs_gpu
def test_guesses_of_every_kind_change_nothing() -> None:
    asked: list[dict[str, Any]] = [{"max_tokens": 24}, {"temperature": 0.9, "seed": 3, "max_tokens": 24}]
    told = {}
    for method in ("off", "suffix", "draft_model", "eagle", "medusa"):
        with LLM(max_num_seqs=16, speculative_config=_fixed(method, 3)) as llm:
            told[method] = [tokens(llm, PROMPTS[:12], **one) for one in asked]
            counts = llm.assembly.engine.counts
            assert method == "off" or counts.num_drafts
            if method in ("draft_model", "eagle"):
                assert counts.accepted_per_position[0] > counts.num_drafts / 3, "what is guessed by is what was written"
    assert all(answers == told["off"] for answers in told.values())


@needs_gpu
@pytest.mark.xfail(reason="where two tokens are exactly as likely, a tree of many guesses chose the other one")
def test_large_trees_of_guesses_change_nothing() -> None:
    told = []
    for method in ("off", "lookahead"):
        with LLM(max_num_seqs=16, speculative_config=_fixed(method, 31)) as llm:
            told.append(tokens(llm, PROMPTS[:12], max_tokens=24))
    assert told[0] == told[1]


@needs_gpu
def test_one_answer_however_it_is_run() -> None:
    with LLM(enable_prefix_caching=False) as llm:
        together = tokens(llm, PROMPTS, max_tokens=24)
        assert [tokens(llm, [prompt], max_tokens=24)[0] for prompt in PROMPTS[:12]] == together[:12]
        seeded: dict[str, Any] = {"temperature": 0.9, "seed": 3, "top_p": 0.9, "max_tokens": 24}
        drawn = tokens(llm, PROMPTS, **seeded)
        assert tokens(llm, PROMPTS[2:5], **seeded) == drawn[2:5]
        assert tokens(llm, PROMPTS, **seeded, logprobs=2) == drawn, "read by the host at every step"
        assert [tokens(llm, PROMPTS, max_tokens=2) for _ in range(4)] == [[text[:2] for text in together]] * 4, (
            "captured"
        )
        asked = SamplingParams(temperature=0.0, max_tokens=12, logprobs=2)
        told = bits.answers(llm, PROMPTS[:6], asked)
        assert [bits.answers(llm, [prompt], asked)[0] for prompt in PROMPTS[:6]] == told, "to the last bit"
    with LLM() as llm:
        assert tokens(llm, PROMPTS, max_tokens=24) == together, "with a cold cache"
        assert tokens(llm, PROMPTS, max_tokens=24) == together, "with a warm one"
    with LLM(max_num_batched_tokens=64, max_num_seqs=16) as llm:
        assert tokens(llm, PROMPTS, max_tokens=24) == together, "in chunks of 64"
    with LLM(kv_cache_memory_bytes=8_000_000, max_model_len=512, max_num_seqs=16) as llm:
        assert tokens(llm, PROMPTS, max_tokens=24) == together, "with preemptions"


def scores(texts: list[list[int]], **settings: Any) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Log-probabilities of all tokens but the first."""
    asked = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0)
    with LLM(enable_prefix_caching=False, **settings) as llm:
        outputs = llm.generate(texts, asked, progress=False)
    told = [zip(output.prompt_token_ids[1:], (output.prompt_logprobs or [])[1:], strict=True) for output in outputs]
    return np.array([likely[token].logprob for text in told for token, likely in text if likely is not None])


@needs_gpu
def test_perch_chooses_as_the_cpu_does_in_float32_but_for_near_ties() -> None:
    """Near are two tokens that bfloat16 can exchange; how far it goes is measured, in plain torch too."""
    asked = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True, logprobs=2)
    with LLM(device="cpu", dtype="float32") as llm:
        exact = llm.generate(PROMPTS, asked, progress=False)
    with LLM() as llm:
        found = llm.generate(PROMPTS, asked, progress=False)
    texts = [output.prompt_token_ids + output.outputs[0].token_ids for output in exact]
    true = scores(texts, device="cpu", dtype="float32")
    plain = np.abs(scores(texts, kernels="reference", dtype="bfloat16") - true)
    ours = np.abs(scores(texts, dtype="bfloat16") - true)
    assert ours.mean() < 1.25 * plain.mean(), "about as exact as plain torch"
    near = 2 * max(plain.max(), ours.max())
    assert near < 0.5
    num_equal = 0
    for one, other in zip(exact, found, strict=True):
        pairs = zip(one.outputs[0].token_ids, other.outputs[0].token_ids, one.outputs[0].logprobs or (), strict=True)
        apart = next((told for token, chosen, told in pairs if token != chosen), None)
        if apart is None:
            num_equal += 1
        else:  # From here on the texts differ.
            first, second, *_ = sorted((likely.logprob for likely in apart.values()), reverse=True)
            assert first - second < near, "not a near-tie"
    assert num_equal > len(PROMPTS) // 2
