"""Settings of vLLM, SGLang and llama.cpp that are not ours: which values ask for nothing, and what to use instead.

One table for Python, the command line and files. A value that is listed says what is so anyway, and is accepted; any
other is refused with what takes its place. A setting of ours by the same name always comes first.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from archerfish.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Foreign:
    """A setting of another engine."""

    instead: str
    """What to use, as the end of a sentence."""
    accepted: tuple[object, ...] = ()
    """Values that ask for what is so anyway."""
    means: tuple[str, str] | None = None
    """A setting of ours and its value: what true asks for."""
    notice: str = ""
    """What is said where true, or any value, is accepted."""
    takes_any: bool = False
    is_switch: bool = False
    """True or false: a flag without a value on the command line."""

    def accepts(self, value: object) -> bool:
        return value is None or self.takes_any or any(_is_same(value, one) for one in self.accepted)


Spell = Callable[[str], str]
"""Writes the name of one of our settings as users do here."""


class Translated(NamedTuple):
    """Settings as Archerfish has them."""

    settings: dict[str, Any]
    notices: list[str]
    """What to say of those that were accepted."""


def _switch(instead: str, *accepted: object, **more: Any) -> Foreign:
    return Foreign(instead, accepted or (False,), is_switch=True, **more)


_ONE_DEVICE = "Archerfish runs a model on one device; use a smaller quantization, such as {quantization} int8 or int4"
_REPLICAS = "start several services, each with a device of its own"
_TEXT_ONLY = "only text is read; leave it out"
_LENGTH, _STEP, _SEQUENCES = "use {max_model_len}", "use {max_num_batched_tokens}", "use {max_num_seqs}"
_SPECULATION = "use {speculative_config}"
_ON_ITS_OWN = (
    "programs and CUDA graphs are recorded for the sizes that steps have; leave it out, or use {kernels} reference"
)
_LORA = "LoRA adapters are not supported; merge the adapter into the checkpoint"
_TOOLS = "tools are called in the format that the chat template says; use {tool_call_format} for another"

FOREIGN: Mapping[str, Foreign] = {
    # vLLM: one device, no workers.
    "tensor_parallel_size": Foreign(_ONE_DEVICE, (1,)),
    "pipeline_parallel_size": Foreign(_ONE_DEVICE, (1,)),
    "data_parallel_size": Foreign(_REPLICAS, (1,)),
    "prefill_context_parallel_size": Foreign(_ONE_DEVICE, (1,)),
    "decode_context_parallel_size": Foreign(_ONE_DEVICE, (1,)),
    "enable_expert_parallel": _switch(_ONE_DEVICE),
    "api_server_count": Foreign("bodies are read by as many processes as there are cores; leave it out", (1,)),
    "distributed_executor_backend": Foreign(_ONE_DEVICE, ("mp", "uni")),
    "disable_custom_all_reduce": _switch("there is nothing to reduce on one device; leave it out", True, False),
    "worker_cls": Foreign("there are no workers; leave it out", ("auto",)),
    # vLLM: models and weights.
    "trust_remote_code": _switch(
        "",
        True,
        False,
        notice="trust_remote_code: no code of a checkpoint is ever run; model families are part of Archerfish",
    ),
    "tokenizer_mode": Foreign("tokenizer.json is what is read; leave it out", ("auto", "hf", "fast")),
    "tokenizer_revision": Foreign("give {tokenizer} a directory that holds this revision"),
    "code_revision": Foreign("no code of a checkpoint is ever run; leave it out"),
    "config_format": Foreign("config.json is what is read; leave it out", ("auto", "hf")),
    "hf_config_path": Foreign("use {hf_overrides}"),
    "hf_token": Foreign("set the environment variable HF_TOKEN", (True, False)),
    "download_dir": Foreign("set the environment variable HF_HUB_CACHE"),
    "ignore_patterns": Foreign("weights in other formats than safetensors are not fetched; leave it out", ([],)),
    "model_loader_extra_config": Foreign("safetensors are read in one way; leave it out", ({},)),
    "model_impl": Foreign("model families are part of Archerfish; leave it out", ("auto",)),
    "runner": Foreign("one model gives answers and embeddings; leave it out", ("auto", "generate", "pooling")),
    "convert": Foreign("no model here has a head for classes or rewards; leave it out", ("auto", "none", "embed")),
    "task": Foreign("one model gives answers and embeddings; leave it out", ("auto", "generate", "embed", "embedding")),
    "pooler_config": Foreign("an embedding is the mean of the last layer's states; use PoolingParams to normalize it"),
    "generation_config": Foreign("what generation_config.json recommends is a default: give parameters", ("auto",)),
    "override_generation_config": Foreign("give sampling parameters with each request", ({},)),
    "quantization_param_path": Foreign("scales of the KV cache are computed as it is written; leave it out"),
    "max_logprobs": Foreign("as many may be asked for as the vocabulary has tokens; leave it out", (-1, 5, 20)),
    "logprobs_mode": Foreign("log-probabilities are the model's own, before penalties", ("raw_logprobs",)),
    # vLLM: memory, steps, recording.
    "swap_space": Foreign("what makes way is computed again, or found in the prefix cache; leave it out", (0, 4)),
    "cpu_offload_gb": Foreign("weights are not offloaded; use a smaller {quantization}", (0,)),
    "num_gpu_blocks_override": Foreign("use {kv_cache_memory_bytes}"),
    "enforce_eager": _switch("", True, False, means=("kernels", "reference")),
    "compilation_config": Foreign(_ON_ITS_OWN, ({},)),
    "optimization_level": Foreign(_ON_ITS_OWN),
    "max_seq_len_to_capture": Foreign("graphs serve contexts of any length; leave it out", (8192,)),
    "cuda_graph_sizes": Foreign(_ON_ITS_OWN, ([],)),
    "enable_chunked_prefill": _switch(
        "prompts longer than a step are always cut; set {max_num_batched_tokens} as high as {max_model_len} to have "
        "each computed in one step",
        True,
    ),
    "max_num_partial_prefills": Foreign("prompts fill what running answers leave of a step; leave it out", (1,)),
    "long_prefill_token_threshold": Foreign("use {max_num_batched_tokens}", (0,)),
    "num_scheduler_steps": Foreign("steps overlap where a device computes next to the host; leave it out", (1,)),
    "async_scheduling": _switch("steps overlap where a device computes next to the host; leave it out", True),
    "scheduling_policy": Foreign("priorities of requests are always obeyed; leave it out", ("fcfs", "priority")),
    "preemption_mode": Foreign("what makes way is computed again; leave it out", ("recompute",)),
    "use_v2_block_manager": _switch("there is one; leave it out", True),
    "disable_sliding_window": _switch("windows are part of a model; set sliding_window in {hf_overrides} to null"),
    "prefix_caching_hash_algo": Foreign(
        "names of blocks are always BLAKE2 hashes; leave it out", ("sha256", "builtin")
    ),
    "attention_backend": Foreign("use {kernels}", ("auto",)),
    "enable_sleep_mode": _switch("free the memory by closing the engine"),
    "kv_transfer_config": Foreign("there is one engine, which keeps its own cache"),
    # vLLM: LoRA, media, reasoning.
    "enable_lora": _switch(_LORA),
    "max_loras": Foreign(_LORA, (1,)),
    "max_lora_rank": Foreign(_LORA, (16,)),
    "lora_modules": Foreign(_LORA),
    "limit_mm_per_prompt": Foreign(_TEXT_ONLY, ({},)),
    "mm_processor_kwargs": Foreign(_TEXT_ONLY, ({},)),
    "allowed_local_media_path": Foreign(_TEXT_ONLY, ("",)),
    "reasoning_parser": Foreign("thinking is part of the text; use chat_template_kwargs to have none", ("",)),
    "enable_auto_tool_choice": _switch("", True, notice="enable_auto_tool_choice: tools may always be called"),
    "tool_call_parser": Foreign(_TOOLS),
    "served_model_name": Foreign(
        "", takes_any=True, notice="served_model_name: only clients of archerfish serve name the model"
    ),
    "response_role": Foreign("the role is always assistant; leave it out", ("assistant",)),
    # vLLM: structured outputs, speculation, logging.
    "guided_decoding_backend": Foreign("llguidance compiles every form; leave it out", ("auto", "guidance")),
    "structured_outputs_config": Foreign("llguidance compiles every form; leave it out", ({},)),
    "logits_processors": Foreign("use logit_bias, allowed_token_ids, bad_words or structured_outputs", ([],)),
    "speculative_model": Foreign(_SPECULATION),
    "num_speculative_tokens": Foreign(_SPECULATION),
    "ngram_prompt_lookup_max": Foreign(_SPECULATION),
    "ngram_prompt_lookup_min": Foreign(_SPECULATION),
    "spec_method": Foreign(_SPECULATION),
    "spec_model": Foreign(_SPECULATION),
    "spec_tokens": Foreign(_SPECULATION),
    "disable_log_stats": _switch("", True, False),  # Nothing is logged in intervals; /metrics always has the numbers.
    "disable_log_requests": _switch("", True, False),  # No prompt is ever logged; the service logs a line per request.
    "enable_log_requests": _switch("", True, False),
    "use_tqdm_on_load": _switch("set the standard error to something that is no terminal", True),
    "ssl_keyfile": Foreign("use {tls_key}"),
    "ssl_certfile": Foreign("use {tls_certificate}"),
    "allowed_origins": Foreign("use {cors_origins}"),
    "uvicorn_log_level": Foreign("use {log_json} for lines that programs read; leave it out"),
    "root_path": Foreign("have the proxy take the prefix away"),
    # SGLang.
    "model_path": Foreign("use {model}"),
    "tokenizer_path": Foreign("use {tokenizer}"),
    "context_length": Foreign(_LENGTH),
    "tp": Foreign(_ONE_DEVICE, (1,)),
    "tp_size": Foreign(_ONE_DEVICE, (1,)),
    "dp": Foreign(_REPLICAS, (1,)),
    "dp_size": Foreign(_REPLICAS, (1,)),
    "mem_fraction_static": Foreign("use {gpu_memory_utilization}"),
    "max_running_requests": Foreign(_SEQUENCES),
    "max_total_tokens": Foreign("use {kv_cache_memory_bytes}"),
    "chunked_prefill_size": Foreign(_STEP),
    "max_prefill_tokens": Foreign(_STEP),
    "schedule_policy": Foreign("priorities of requests are always obeyed; leave it out", ("fcfs", "lpm")),
    "page_size": Foreign("use {block_size}"),
    "disable_radix_cache": _switch("use --no-enable-prefix-caching (enable_prefix_caching=False)"),
    "disable_cuda_graph": _switch("", True, False, means=("kernels", "reference")),
    "speculative_algorithm": Foreign(_SPECULATION),
    "speculative_draft_model_path": Foreign(_SPECULATION),
    "speculative_num_draft_tokens": Foreign(_SPECULATION),
    "random_seed": Foreign("use {seed}"),
    # llama.cpp.
    "ctx_size": Foreign(_LENGTH),
    "n_ctx": Foreign(_LENGTH),
    "c": Foreign(_LENGTH),
    "m": Foreign("use {model}"),
    "n": Foreign("use {max_tokens}"),
    "predict": Foreign("use {max_tokens}"),
    "n_predict": Foreign("use {max_tokens}"),
    "ngl": Foreign("all layers run on one device; use {device} cuda"),
    "gpu_layers": Foreign("all layers run on one device; use {device} cuda"),
    "n_gpu_layers": Foreign("all layers run on one device; use {device} cuda"),
    "t": Foreign("use {threads}"),
    "s": Foreign("use {seed}"),
    "b": Foreign(_STEP),
    "ub": Foreign(_STEP),
    "ubatch_size": Foreign(_STEP),
    "np": Foreign(_SEQUENCES),
    "parallel": Foreign(_SEQUENCES),
    "p": Foreign("give the prompt as it is, without a flag"),
    "prompt": Foreign("give the prompt as it is, without a flag"),
    "hf": Foreign("use {model} with the name of a repository of safetensors; GGUF is not read"),
    "hf_repo": Foreign("use {model} with the name of a repository of safetensors; GGUF is not read"),
    "fa": _switch("attention always runs without storing its scores; leave it out"),
    "flash_attn": _switch("attention always runs without storing its scores; leave it out", True),
    "ctk": Foreign("use {kv_cache_dtype}, which is that of keys and values"),
    "ctv": Foreign("use {kv_cache_dtype}, which is that of keys and values"),
    "cache_type_k": Foreign("use {kv_cache_dtype}, which is that of keys and values"),
    "cache_type_v": Foreign("use {kv_cache_dtype}, which is that of keys and values"),
    "md": Foreign(_SPECULATION),
    "model_draft": Foreign(_SPECULATION),
    "draft_max": Foreign(_SPECULATION),
    "mlock": _switch("weights are not swapped out while they are used; leave it out"),
    "mmap": _switch("files are always mapped while they are read; leave it out", True),
    "temp": Foreign("use {temperature}"),
    "repeat_penalty": Foreign("use {repetition_penalty}"),
    "grammar_file": Foreign("use {grammar}"),
    "alias": Foreign("use {served_model_name}"),
    "cont_batching": _switch("it is the default; {batching} has others", True),
}

ALIASES: Mapping[str, Mapping[str, str]] = {
    "dtype": {"half": "float16", "float": "float32"},
    "kv_cache_dtype": {"fp8_e4m3": "fp8"},
    "load_format": {"safetensors": "auto", "hf": "auto"},
}
"""Values of settings of ours under the names of other engines."""

_QUANTIZED = "checkpoints that are quantized already are not read; give the original one and use int4 or int8"
REFUSED: Mapping[str, Mapping[str, str]] = {
    "quantization": dict.fromkeys(("awq", "awq_marlin", "gptq", "gptq_marlin", "compressed-tensors"), _QUANTIZED)
    | {"bitsandbytes": "use int8 or int4, which are made while loading", "gguf": "GGUF is not read"},
    "load_format": dict.fromkeys(("pt", "npcache", "bitsandbytes", "gguf"), "only safetensors are read; use auto"),
    "kv_cache_dtype": {"fp8_e5m2": "use fp8, which has more digits, or int8", "turboquant": "use int8 or fp8"},
}
"""Values that settings of ours have in other engines, and what to use."""


def own_value(name: str, value: Any) -> Any:
    """The value of a setting of ours as this engine calls it; raises ValueError with what to use instead."""
    if type(value).__module__ == "torch":  # A torch.dtype.
        value = str(value).removeprefix("torch.")
    if not isinstance(value, str):
        return value
    if value in REFUSED.get(name, {}):
        raise ValueError(f"{value!r}: {REFUSED[name][value]}")
    return ALIASES.get(name, {}).get(value, value)


def hint(name: str, spell: Spell) -> str | None:
    """What takes the place of a setting of another engine, as it is spelled there; None if it is unknown."""
    foreign = FOREIGN.get(name.removeprefix("no_") if name not in FOREIGN else name)
    if foreign is None:
        return None
    if foreign.means is not None:
        return f"use {spell(foreign.means[0])} {foreign.means[1]}"
    return _spelled(foreign.instead, spell) or "leave it out"


def translate(settings: Mapping[str, Any], spell: Spell) -> Translated:
    """Settings without those of other engines that ask for nothing; a ConfigError for those that ask for more.

    `settings` holds settings of other engines alone; `spell` writes the name of one of ours.
    """
    own: dict[str, Any] = {}
    notices = []
    for name, value in settings.items():
        foreign = FOREIGN[name]
        if not foreign.accepts(value):
            written = spell(name)
            # A flag says its value by itself.
            what = written if foreign.is_switch and written.startswith("-") else f"{written} {_shown(value)}"
            raise ConfigError(f"{what}: {hint(name, spell)}")
        is_asked = value is not None and (foreign.takes_any or _is_same(value, True))
        if is_asked and foreign.notice:
            notices.append(foreign.notice)
        if is_asked and foreign.means is not None:
            own[foreign.means[0]] = foreign.means[1]
    return Translated(own, notices)


def _spelled(text: str, spell: Spell) -> str:
    start, brace, rest = text.partition("{")
    if not brace:
        return text
    name, _, end = rest.partition("}")
    return start + spell(name) + _spelled(end, spell)


def _is_same(value: object, accepted: object) -> bool:
    """Whether a value is this one; texts of the command line are compared with how the value is written."""
    if isinstance(value, str) and not isinstance(accepted, str):
        return value.lower() == str(accepted).lower()
    if isinstance(value, bool) != isinstance(accepted, bool):
        return False
    return value == accepted


def _shown(value: object) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= 100 else text[:100] + "..."
