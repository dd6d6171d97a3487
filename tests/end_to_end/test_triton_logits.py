"""Logits by Triton kernels beside transformers' of the same weights, both in 16 bits, judged by float32.

Whole models go through the engine: prompts in chunks, then a continuation through the paged cache. Without a GPU tiny
ones are interpreted; with one they are compiled, and models of real widths join them.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from archerfish import LLM, SamplingParams
from tests.equivalence.cases import Case, make_model

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPE = torch.bfloat16 if DEVICE == "cuda" else torch.float16
"""The interpreter rounds to bfloat16 by dropping bits, which no GPU does."""
NUM_NEW_TOKENS = 32 if DEVICE == "cuda" else 3
PROMPT_LENGTHS = (5, 17, 64, 90) if DEVICE == "cuda" else (3, 9)
STEP_TOKENS = 37 if DEVICE == "cuda" else 8
AS_FAR = 1.5
"""How much farther from float32 than those of transformers ours may be."""

_TINY = {"num_hidden_layers": 2, "head_dim": 16, "intermediate_size": 48}
_WIDE = {
    "hidden_size": 2048,
    "intermediate_size": 2816,
    "num_hidden_layers": 4,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "vocab_size": 512,
    "initializer_range": 0.02,
}


def families(size: str, shape: dict[str, Any], window: int) -> list[Case]:
    types = ["sliding_attention", "full_attention"] * (shape["num_hidden_layers"] // 2)
    experts = {"num_local_experts": 5, "num_experts_per_tok": 2, "sliding_window": None}
    return [
        Case(f"{size} llama", "LlamaConfig", shape),
        Case(f"{size} qwen3", "Qwen3Config", {**shape, "tie_word_embeddings": True}),
        Case(f"{size} gemma3", "Gemma3TextConfig", {**shape, "sliding_window": window, "layer_types": types}),
        Case(f"{size} mixtral", "MixtralConfig", {**shape, **experts}),
    ]


CASES = families("tiny", _TINY, window=6)
if DEVICE == "cuda":
    CASES += families("wide", _WIDE, window=40)


@dataclass(frozen=True)
class Told:
    """Log-probabilities of the whole vocabulary, which stand for logits, at every position of some texts."""

    ours: Tensor
    theirs: Tensor
    """By transformers in the same number format."""
    exact: Tensor
    """By transformers in float32, of the same weights."""

    def __getitem__(self, rows: Tensor) -> "Told":
        return Told(self.ours[rows], self.theirs[rows], self.exact[rows])


def tell(case: Case, directory: Path) -> tuple[Told, Tensor]:
    """And which of the positions were reached one token at a time."""
    with torch.device(DEVICE):
        model = make_model(case)
        decide(model)
    model.to(DTYPE).save_pretrained(directory)
    vocab_size = case.config().vocab_size
    generator = torch.Generator().manual_seed(1)
    prompts = [torch.randint(3, vocab_size, (length,), generator=generator).tolist() for length in PROMPT_LENGTHS]
    whole = {"prompt_logprobs": vocab_size, "logprobs": vocab_size}
    asked = SamplingParams(temperature=0.0, max_tokens=NUM_NEW_TOKENS, ignore_eos=True, **whole)
    ours, texts, is_decoded = [], [], []
    with engine(directory) as llm:
        for output in llm.generate(prompts, asked, progress=False):
            answer = output.outputs[0]
            assert output.prompt_logprobs is not None and answer.logprobs is not None
            for entries in (*output.prompt_logprobs[1:], *answer.logprobs):
                assert entries is not None
                ours.append(torch.tensor([entries[token].logprob for token in range(vocab_size)]))
            texts.append([*output.prompt_token_ids, *answer.token_ids[:-1]])
            is_decoded += [False] * len(output.prompt_token_ids) + [True] * (NUM_NEW_TOKENS - 1)
    theirs, exact = (by_transformers(directory, texts, dtype) for dtype in (DTYPE, torch.float32))
    return Told(torch.stack(ours), theirs, exact), torch.tensor(is_decoded)


def decide(model: Any) -> None:
    """Have each token's embedding say which experts it takes, in every layer, and by far.

    Of two that are nearly as good, rounding would take the one or the other, and not the same in every format.
    """
    num_experts, hidden = getattr(model.config, "num_local_experts", 0), model.config.hidden_size
    table = model.get_input_embeddings().weight
    routers = [parameter for parameter in model.parameters() if parameter.shape == (num_experts, hidden)]
    if routers:
        directions = torch.linalg.qr(torch.randn(hidden, num_experts)).Q.T * hidden**0.5  # [experts, hidden]
        tokens = torch.arange(len(table))
        first = tokens % num_experts
        second = (first + 1 + tokens // num_experts % (num_experts - 1)) % num_experts
        with torch.no_grad():
            table += 4 * directions[first] + 3 * directions[second]
            for router in routers:
                router.copy_(directions * 8 / hidden)


def engine(directory: Path) -> LLM:
    settings: dict[str, Any] = {
        "device": DEVICE,
        "kernels": "triton",
        "dtype": str(DTYPE).removeprefix("torch."),
        "skip_tokenizer_init": True,
    }
    return LLM(str(directory), **settings, max_model_len=128, max_num_seqs=4, max_num_batched_tokens=STEP_TOKENS)


def by_transformers(directory: Path, texts: list[list[int]], dtype: torch.dtype) -> Tensor:
    # Loaded anew: a model that is converted has its rotations rounded too.
    model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=dtype, attn_implementation="eager")
    model = model.to(DEVICE).eval()
    with torch.inference_mode():
        rows = [model(torch.tensor([text], device=DEVICE)).logits[0].float() for text in texts]
    return torch.log_softmax(torch.cat(rows), dim=-1).cpu()


def assert_as_near(told: Told) -> None:
    ours, theirs = (told.ours - told.exact).abs(), (told.theirs - told.exact).abs()
    assert ours.mean() <= AS_FAR * theirs.mean()
    assert ours.max() <= AS_FAR * theirs.max()
    best = told.exact.topk(2)
    is_other = told.ours.argmax(-1) != best.indices[:, 0]
    gaps = best.values[:, 0] - best.values[:, 1]
    assert (gaps[is_other] < AS_FAR * theirs.max()).all(), "another token is likeliest, and it is no near-tie"


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # The interpreter's numpy, of infinity less infinity.
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_logits_are_as_near_to_float32_as_those_of_transformers(case: Case, tmp_path: Path) -> None:
    told, is_decoded = tell(case, tmp_path)
    assert_as_near(told[~is_decoded])
    assert_as_near(told[is_decoded])
