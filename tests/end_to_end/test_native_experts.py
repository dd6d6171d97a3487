"""Models with experts by native kernels: the reference's answers in float32, one answer however run in every format."""

import json
from pathlib import Path
from typing import Any

import pytest

from archerfish import LLM, SamplingParams
from archerfish.execution.backends.cpu_program import RecordedModel
from tests.checkpoints import CONFIG
from tests.end_to_end import bits
from tests.end_to_end.bits import assert_alike
from tests.ops.cpu.native import KERNELS, needs_native

pytestmark = needs_native

MIXTRAL = {
    **CONFIG,
    "model_type": "mixtral",
    "hidden_size": 64,
    "intermediate_size": 80,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "num_hidden_layers": 3,
    "num_local_experts": 5,
    "num_experts_per_tok": 2,
    "sliding_window": None,
    "torch_dtype": "bfloat16",
}
PROMPTS = [
    [5, 6, 7],
    [3 + position % 50 for position in range(100)],
    [3 + position * position % 53 for position in range(40)],
    *([number, 9, 11, 4] for number in range(3, 9)),
]
GREEDY = SamplingParams(temperature=0.0, max_tokens=10, ignore_eos=True, logprobs=2)
SEEDED = SamplingParams(temperature=0.9, seed=3, max_tokens=10, ignore_eos=True, logprobs=2)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("experts") / "config.json"
    file.write_text(json.dumps(MIXTRAL))
    return file


def engine(model: Path, **settings: Any) -> LLM:
    usual = {"load_format": "dummy", "device": "cpu", "max_num_seqs": 16, "threads": 2}
    return LLM(str(model), **{**usual, **settings})


def answers(llm: LLM, prompts: list[list[int]], params: SamplingParams = GREEDY) -> list[object]:
    """Tokens and the very log-probabilities: equal only if every bit was."""
    return bits.answers(llm, prompts, params)


def test_in_float32_it_writes_what_the_reference_writes(model: Path) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=10, ignore_eos=True, prompt_logprobs=1)
    told = []
    for kernels in ("reference", "auto"):
        with engine(model, dtype="float32", kernels=kernels) as llm:
            is_native = isinstance(llm.assembly.executor._model, RecordedModel)  # type: ignore[attr-defined]
            assert is_native == (kernels == "auto")
            told.append(llm.generate(PROMPTS, params, progress=False))
    assert_alike(*told)


@pytest.mark.parametrize("quantization", ["none", "int8", "w8a8", "int4"])
def test_one_answer_however_it_is_run(model: Path, quantization: str) -> None:
    settings: dict[str, Any] = {"quantization": quantization}
    with engine(model, **settings, enable_prefix_caching=False) as llm:
        together = answers(llm, PROMPTS)
        assert [answers(llm, [prompt])[0] for prompt in PROMPTS] == together
        drawn = answers(llm, PROMPTS, SEEDED)
        assert answers(llm, PROMPTS[2:5], SEEDED) == drawn[2:5]
    with engine(model, **settings) as llm:
        assert answers(llm, PROMPTS) == together, "with a cold cache"
        assert answers(llm, PROMPTS) == together, "with a warm one"
    with engine(model, **settings, max_num_batched_tokens=17, threads=1) as llm:
        assert answers(llm, PROMPTS) == together, "in chunks of 17, on one thread"


@pytest.mark.skipif(len(KERNELS) < 2, reason="this CPU runs one set of kernels")
@pytest.mark.parametrize("settings", [{"dtype": "float32"}, {"quantization": "int8"}, {"quantization": "int4"}])
def test_every_instruction_set_gives_the_same_answer(model: Path, settings: dict[str, Any]) -> None:
    told = []
    for kernels in KERNELS:
        with engine(model, kernels=kernels, **settings) as llm:
            told.append(answers(llm, PROMPTS[:4]))
    assert told[0] == told[1]
