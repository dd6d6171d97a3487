"""Perch by native kernels: the reference's answers in float32, and one answer however it is run in every format."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from archerfish import LLM, SamplingParams
from archerfish.errors import ConfigError, ModelError
from archerfish.weights.locate import locate
from tests.end_to_end import bits
from tests.end_to_end.bits import assert_alike
from tests.lanes import full
from tests.ops.cpu.native import KERNELS, needs_native

pytestmark = needs_native

PROMPTS = [
    "Once upon a time",
    "April is the fourth month of the year. " * 12,
    "The fox ran into the forest. The hunter sat under an old oak tree. Then the rain came. Who ran?",
    *(f"Story number {number}: there was a" for number in range(6)),
]
PARAMS = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True, logprobs=2)
SEEDED = SamplingParams(temperature=0.9, seed=3, max_tokens=12, ignore_eos=True, logprobs=2)


def answers(llm: LLM, prompts: list[str], params: SamplingParams = PARAMS) -> list[object]:
    """Tokens and the very log-probabilities: equal only if every bit was."""
    return bits.answers(llm, prompts, params)


def test_in_float32_it_writes_what_the_reference_writes() -> None:
    params = SamplingParams(temperature=0.0, max_tokens=20, logprobs=1, prompt_logprobs=1)
    told = []
    for kernels in ("reference", "auto"):
        with LLM(dtype="float32", kernels=kernels, max_num_seqs=16) as llm:
            told.append(llm.generate(PROMPTS, params, progress=False))
    assert_alike(*told)


@pytest.mark.parametrize("quantization", ["none", "w8a8", "int4", *full("int8")])
def test_one_answer_however_it_is_run(quantization: str) -> None:
    settings: dict[str, Any] = {"quantization": quantization, "max_num_seqs": 16}
    with LLM(**settings, enable_prefix_caching=False) as llm:
        together = answers(llm, PROMPTS)
        assert [answers(llm, [prompt])[0] for prompt in PROMPTS] == together
        drawn = answers(llm, PROMPTS, SEEDED)
        assert answers(llm, PROMPTS[2:5], SEEDED) == drawn[2:5]
    with LLM(**settings) as llm:
        assert answers(llm, PROMPTS) == together, "with a cold cache"
        assert answers(llm, PROMPTS) == together, "with a warm one"
    with LLM(**settings, max_num_batched_tokens=17, threads=1) as llm:
        assert answers(llm, PROMPTS) == together, "in chunks of 17, on one thread"


@pytest.mark.skipif(len(KERNELS) < 2, reason="this CPU runs one set of kernels")
@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_every_instruction_set_gives_the_same_answer(quantization: str) -> None:
    told = []
    for kernels in KERNELS:
        with LLM(quantization=quantization, kernels=kernels, max_num_seqs=16) as llm:
            told.append(answers(llm, PROMPTS[:4]))
    assert all(one == told[0] for one in told)


def test_what_cannot_be_had_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="--quantization int8 needs fast kernels"):
        LLM(quantization="int8", kernels="reference")
    if "amx" not in KERNELS:
        with pytest.raises(ConfigError, match="--kernels amx: this CPU supports avx"):
            LLM(kernels="amx")
    with pytest.raises(ConfigError, match="--quantization int4 needs fast kernels"):
        LLM(quantization="int4", kernels="reference")
    with pytest.raises(ConfigError, match="groups have 32, 64 or 128"):
        LLM(quantization="int4", quantization_group=48)
    with pytest.raises(ConfigError, match="belong to --quantization int4"):
        LLM(quantization="int8", quantization_zero_points=True)
    with pytest.raises(ConfigError, match="--block-size 8 is not a multiple of 16"):
        LLM(quantization="int8", block_size=8)
    with LLM(block_size=8, max_num_seqs=2) as llm:
        assert llm.generate("Once", PARAMS, progress=False)[0].outputs[0].token_ids


@pytest.mark.parametrize("group", [32, *full(128)])
def test_groups_and_zero_points(group: int) -> None:
    with LLM(quantization="int4", quantization_group=group, quantization_zero_points=True, max_num_seqs=4) as llm:
        [output] = llm.generate("Once upon a time", PARAMS, progress=False)
    assert output.outputs[0].text.startswith(", there was a")


def test_a_model_that_cannot_write_cannot_be_calibrated(tmp_path: Path) -> None:
    broken = shutil.copytree(locate("minnow"), tmp_path / "broken")
    weights = load_file(broken / "model.safetensors")
    save_file({**weights, "model.norm.weight": weights["model.norm.weight"] * torch.nan}, broken / "model.safetensors")
    with pytest.raises(ModelError, match=r"cannot write a text of its own: .*use --quantization-rounding nearest"):
        LLM(str(broken), quantization="int4")
    with LLM(str(broken), quantization="int4", quantization_rounding="nearest", max_num_seqs=2) as llm:
        assert llm.assembly.config.quantization_rounding == "nearest"


def test_closing_ends_the_threads() -> None:
    with LLM(max_num_seqs=2, threads=3) as llm:
        team = llm.assembly.executor._model._team  # type: ignore[attr-defined]
        before = len(list(Path("/proc/self/task").iterdir()))
    assert len(list(Path("/proc/self/task").iterdir())) <= before - 2
    team.close()  # Once more does no harm.
