"""Tiny random models of every family, made by transformers, and what transformers says of them."""

from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch
import transformers

VOCAB_SIZE = 151
PROMPT_LENGTHS = (5, 17, 33, 64, 90)
MAX_MODEL_LEN = 128
NUM_NEW_TOKENS = 24

_LLAMA_LIKE = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": MAX_MODEL_LEN,
    "initializer_range": 0.2,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


@dataclass(frozen=True)
class Case:
    """One config: the class that transformers has for it, and what differs from the plain tiny shape."""

    name: str
    config_class: str
    changes: dict[str, Any] = field(default_factory=dict)
    drops: tuple[str, ...] = ()

    def config(self) -> Any:
        values = {name: value for name, value in _LLAMA_LIKE.items() if name not in self.drops}
        return getattr(transformers, self.config_class)(**{**values, **self.changes})


def _rope(kind: str, **more: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 10000.0, **more}}


_LLAMA3 = {"factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32}
_YARN = {"factor": 4.0, "original_max_position_embeddings": 32}
_GPT2 = {"n_embd": 48, "n_layer": 3, "n_head": 4, "n_positions": MAX_MODEL_LEN}
_LLAMA_NAMES = tuple(name for name in _LLAMA_LIKE if name.startswith(("hidden", "inter", "num", "max")))
_LONG = {"short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5], "long_factor": [1.0, 2.0, 3.0, 4.0, 6.0, 8.0]}
_MOE = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 40}

CASES = [
    Case("llama2-mha", "LlamaConfig", {"num_key_value_heads": 4}),
    Case("llama3-gqa-tied", "LlamaConfig", {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True}),
    Case("llama-mqa-wide-heads", "LlamaConfig", {"num_key_value_heads": 1, "head_dim": 20}),
    Case("llama-rope-llama3", "LlamaConfig", _rope("llama3", **_LLAMA3)),
    Case("llama-rope-linear", "LlamaConfig", _rope("linear", factor=3.0)),
    Case("llama-rope-dynamic", "LlamaConfig", _rope("dynamic", factor=2.0)),
    Case("llama-rope-yarn", "LlamaConfig", _rope("yarn", **_YARN)),
    Case(
        "llama-rope-yarn-mscale", "LlamaConfig", _rope("yarn", mscale=0.7, mscale_all_dim=1.2, truncate=False, **_YARN)
    ),
    Case("mistral-window", "MistralConfig", {"sliding_window": 48}),
    Case("mistral-no-window", "MistralConfig", {"sliding_window": None, "head_dim": 16}),
    Case("mixtral", "MixtralConfig", {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None}),
    Case(
        "mixtral-wide-heads",
        "MixtralConfig",
        {"num_local_experts": 7, "num_experts_per_tok": 3, "sliding_window": None, "head_dim": 16},
    ),
    Case("qwen2", "Qwen2Config"),
    Case("qwen2-window", "Qwen2Config", {"use_sliding_window": True, "sliding_window": 40, "max_window_layers": 2}),
    Case("qwen3", "Qwen3Config", {"head_dim": 16, "tie_word_embeddings": True}),
    Case("qwen3-moe", "Qwen3MoeConfig", {**_MOE, "head_dim": 16, "norm_topk_prob": True, "mlp_only_layers": [1]}),
    Case("qwen3-moe-sparse", "Qwen3MoeConfig", {**_MOE, "head_dim": 16, "decoder_sparse_step": 2}),
    Case("gemma2", "Gemma2Config", {"head_dim": 16, "sliding_window": 40, "query_pre_attn_scalar": 20}),
    Case("gemma3", "Gemma3TextConfig", {"num_hidden_layers": 7, "head_dim": 16, "sliding_window": 40}),
    Case("phi3", "Phi3Config", {"sliding_window": None}),
    Case("phi4-partial", "Phi3Config", {"sliding_window": 44, **_rope("default", partial_rotary_factor=0.5)}),
    Case(
        "phi3-longrope",
        "Phi3Config",
        {**_rope("longrope", **_LONG), "original_max_position_embeddings": MAX_MODEL_LEN, "sliding_window": None},
    ),
    Case("olmo2", "Olmo2Config"),
    Case("smollm3", "SmolLM3Config", {"no_rope_layer_interval": 2}),
    Case(
        "granite",
        "GraniteConfig",
        {
            "embedding_multiplier": 3.0,
            "attention_multiplier": 0.2,
            "residual_multiplier": 0.4,
            "logits_scaling": 2.0,
            "attention_bias": True,
        },
    ),
    Case("gpt2", "GPT2Config", _GPT2, _LLAMA_NAMES),
    Case("falcon-7b-like", "FalconConfig", {"multi_query": True}, ("intermediate_size", "num_key_value_heads")),
    Case(
        "falcon-40b-like",
        "FalconConfig",
        {"new_decoder_architecture": True, "num_kv_heads": 2, "bias": True},
        ("intermediate_size", "num_key_value_heads"),
    ),
    Case(
        "falcon-sequential",
        "FalconConfig",
        {"parallel_attn": False, "multi_query": False, "bias": True},
        ("intermediate_size", "num_key_value_heads"),
    ),
    Case("starcoder2", "Starcoder2Config", {"sliding_window": 44}),
]


@dataclass(frozen=True)
class Reference:
    """A checkpoint on disk and transformers' own results for it, prompt by prompt."""

    directory: Path
    prompts: list[list[int]]
    logits: list[torch.Tensor]
    """[length, vocabulary] for each prompt."""
    greedy: list[list[int]]
    num_parameters: int


@cache
def reference(case_name: str, root: Path) -> Reference:
    """Made once for each process."""
    case = next(case for case in CASES if case.name == case_name)
    model = make_model(case)
    directory = root / case.name
    model.save_pretrained(directory)
    generator = torch.Generator().manual_seed(1)
    prompts = [torch.randint(3, VOCAB_SIZE, (n,), generator=generator).tolist() for n in PROMPT_LENGTHS]
    with torch.inference_mode():
        logits = [model(torch.tensor([prompt])).logits[0].float() for prompt in prompts]
        greedy = [_greedy(model, prompt) for prompt in prompts]
    return Reference(directory, prompts, logits, greedy, model.num_parameters())


def make_model(case: Case) -> Any:
    """With random weights, in float32, on torch's default device."""
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(case.config(), attn_implementation="eager").float().eval()
    _unsettle(model)
    return model


def _unsettle(model: torch.nn.Module) -> None:
    """Norms and biases start at one and zero, where a forgotten one would not be noticed."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.2)


def _greedy(model: Any, prompt: list[int]) -> list[int]:
    whole = model.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        max_new_tokens=NUM_NEW_TOKENS,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
    )
    return whole[0, len(prompt) :].tolist()
