"""The settings of vLLM, SGLang and llama.cpp that are not ours: which values are accepted, and what to use instead.

Texts name settings of ours in braces, {no_...} where one is to be switched off. Knows no command line and no file.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from archerfish.config.switches import read_switch


@dataclass(frozen=True, slots=True)
class Foreign:
    """A setting of another engine."""

    instead: str
    """What to use, as the end of a sentence."""
    accepted: tuple[object, ...] = ()
    """Values that change nothing, because the engine works so by itself, or because nothing depends on them."""
    accepts: Callable[[object], bool] = lambda _: False
    """Whether a value changes nothing, where a list of values cannot say so."""
    renamed: str = ""
    """The setting of ours that takes the same values, where there is one."""
    notice: str = ""
    """What is logged when a value is accepted that is not the other engine's default."""
    default: object = None
    """The other engine's default: it requests nothing."""
    is_switch: bool = False
    """Whether it is true or false: a flag without a value on the command line."""
    words: tuple[str, ...] = ()
    """Values that may follow such a flag all the same."""

    def is_harmless(self, value: object) -> bool:
        """Whether a value changes nothing here."""
        if value is None or self.accepts(value) or value in self.words:
            return True
        return any(self.is_same(value, accepted) for accepted in self.accepted)

    def is_default(self, value: object) -> bool:
        return value is None or self.is_same(value, self.default)

    def is_same(self, value: object, other: object) -> bool:
        """Whether two values are the same; texts of the command line are compared with how a value is written."""
        if self.is_switch and isinstance(value, str):
            value = read_switch(value)
        if isinstance(value, str) and not isinstance(other, str):
            return value.lower() == str(other).lower()
        if isinstance(value, bool) != isinstance(other, bool):
            return False
        return value == other


def _switch(instead: str, *accepted: object, default: object = False, **more: Any) -> Foreign:
    return Foreign(instead, accepted or (False,), default=default, is_switch=True, **more)


def _anything(notice: str = "", default: object = None) -> Foreign:
    return Foreign("", accepts=lambda _: True, notice=notice, default=default)


def _has_no_media(value: object) -> bool:
    """Whether a limit of images and other media for each prompt is 0: {"image": 0}, also as JSON, or image=0."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            value = dict(item.partition("=")[::2] for item in str(value).split(","))
    if not isinstance(value, Mapping):
        return False
    counts = [count.get("count") if isinstance(count, Mapping) else count for count in value.values()]
    return all(str(count) == "0" for count in counts)


_ONE_DEVICE = "Archerfish runs a model on one device; use a smaller quantization, such as {quantization} int8 or int4"
_REPLICAS = "start several services, each with a device of its own"
_TEXT_ONLY = "only text is read; leave it out"
_LENGTH, _STEP, _SEQUENCES = "use {max_model_len}", "use {max_num_batched_tokens}", "use {max_num_seqs}"
_SPECULATION = "use {speculative_config}"
_BACKENDS = (
    "programs and CUDA graphs are recorded for the sizes that steps have; leave it out, or use {kernels} reference"
)
_LORA = "LoRA adapters are not supported; merge the adapter into the checkpoint"
_OVERLAP = "steps overlap wherever the device computes alongside the host"
_GRAPHS = "use {kernels} reference for plain torch, operation by operation"
_GRAPHS_NOTICE = (
    "native and Triton kernels stay in use, CUDA graphs of a GPU too; {kernels} reference is plain torch, operation by "
    "operation"
)
_ATTENTION = "attention never stores its scores"
_PRIORITIES = "priorities of requests are always obeyed; leave it out"
_PREEMPTED = "what is preempted is computed again, or found in the prefix cache; leave it out"

VLLM_ENGINE: Mapping[str, Foreign] = {
    # One device, no workers.
    "tensor_parallel_size": Foreign(_ONE_DEVICE, (1,)),
    "pipeline_parallel_size": Foreign(_ONE_DEVICE, (1,)),
    "data_parallel_size": Foreign(_REPLICAS, (1,)),
    "prefill_context_parallel_size": Foreign(_ONE_DEVICE, (1,)),
    "decode_context_parallel_size": Foreign(_ONE_DEVICE, (1,)),
    "enable_expert_parallel": _switch(_ONE_DEVICE),
    "nnodes": Foreign(_ONE_DEVICE, (1,)),
    "distributed_executor_backend": Foreign(_ONE_DEVICE, ("mp", "uni")),
    "disable_custom_all_reduce": _switch("", True, False),
    "max_parallel_loading_workers": Foreign("a checkpoint is read by as many threads as pay; leave it out"),
    "worker_cls": Foreign("there are no workers; leave it out", ("auto",)),
    "worker_extension_cls": Foreign("there are no workers; leave it out", ("",)),
    # Models and weights.
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
    "rope_scaling": Foreign("use {hf_overrides}", ({},)),
    "rope_theta": Foreign("use {hf_overrides}"),
    "download_dir": Foreign("set the environment variable HF_HUB_CACHE"),
    "ignore_patterns": Foreign("weights in other formats than safetensors are not fetched; leave it out", ([],)),
    "model_loader_extra_config": Foreign("there is one loader; leave it out", ({},)),
    "safetensors_load_strategy": Foreign("there is one loader; leave it out", ("lazy",)),
    "use_tqdm_on_load": _switch(
        "", True, False, default=True, notice="use_tqdm_on_load: loading shows its progress only on a terminal"
    ),
    "model_impl": Foreign("model families are part of Archerfish; leave it out", ("auto",)),
    "runner": Foreign("one model gives answers and embeddings; leave it out", ("auto", "generate", "pooling")),
    "convert": Foreign("no model here has a head for classes or rewards; leave it out", ("auto", "none", "embed")),
    "task": Foreign("one model gives answers and embeddings; leave it out", ("auto", "generate", "embed", "embedding")),
    "pooler_config": Foreign("an embedding is the mean of the last layer's states; leave it out"),
    "override_pooler_config": Foreign("an embedding is the mean of the last layer's states; leave it out"),
    "generation_config": Foreign("what generation_config.json recommends is a default: give parameters", ("auto",)),
    "override_generation_config": Foreign("give sampling parameters with each request", ({},)),
    "quantization_param_path": Foreign("scales of the KV cache are computed as it is written; leave it out"),
    "calculate_kv_scales": _switch("scales of the KV cache are computed as it is written; leave it out", True, False),
    "max_logprobs": Foreign("as many may be requested as the vocabulary has tokens; leave it out", (-1, 5, 20)),
    "logprobs_mode": Foreign("log-probabilities are the model's own, before penalties", ("raw_logprobs",)),
    # Memory, steps, graphs.
    "swap_space": Foreign(_PREEMPTED, (0, 4), default=4),
    "cpu_offload_gb": Foreign("weights are not offloaded; use a smaller {quantization}", (0,)),
    "num_gpu_blocks_override": Foreign("use {kv_cache_memory_bytes}"),
    "enforce_eager": _switch(_GRAPHS, True, False, notice=f"enforce_eager: {_GRAPHS_NOTICE}"),
    "compilation_config": Foreign(_BACKENDS, ({},)),
    "optimization_level": Foreign(_BACKENDS),
    "max_seq_len_to_capture": Foreign("graphs serve contexts of any length; leave it out", (8192,)),
    "cuda_graph_sizes": Foreign(_BACKENDS, ([],)),
    "cudagraph_capture_sizes": Foreign(_BACKENDS, ([],)),
    "enable_chunked_prefill": _switch(
        "prompts longer than a step are always cut; set {max_num_batched_tokens} as high as {max_model_len} to have "
        "each computed in one step",
        True,
        default=True,
    ),
    "max_num_partial_prefills": Foreign("prompts fill what running answers leave of a step; leave it out", (1,)),
    "max_long_partial_prefills": Foreign("prompts fill what running answers leave of a step; leave it out", (1,)),
    "long_prefill_token_threshold": Foreign("use {max_num_batched_tokens}", (0,)),
    "num_scheduler_steps": Foreign(f"{_OVERLAP}; leave it out", (1,)),
    "num_lookahead_slots": Foreign(_SPECULATION, (0,)),
    "scheduler_delay_factor": Foreign("use {batching} dynamic", (0,)),
    "async_scheduling": _switch("", True, False, default=True, notice=f"async_scheduling: {_OVERLAP}"),
    "disable_async_output_proc": _switch("", True, False, notice=f"disable_async_output_proc: {_OVERLAP}"),
    "scheduling_policy": Foreign(_PRIORITIES, ("fcfs", "priority")),
    "preemption_mode": Foreign(_PREEMPTED, ("recompute",)),
    "use_v2_block_manager": _switch("", True, False),
    "disable_hybrid_kv_cache_manager": _switch("", True, False),
    "disable_sliding_window": _switch("windows are part of a model; set sliding_window in {hf_overrides} to null"),
    "disable_cascade_attn": _switch("", True, False),
    "prefix_caching_hash_algo": Foreign("block hashes are always BLAKE2; leave it out", ("sha256", "builtin")),
    "attention_backend": Foreign("use {kernels}", ("auto",)),
    "enable_sleep_mode": _switch("free the memory by closing the engine"),
    "kv_transfer_config": Foreign("there is one engine, which has a cache of its own; leave it out"),
    # LoRA and media.
    "enable_lora": _switch(_LORA),
    "max_loras": Foreign(_LORA, (1,)),
    "max_lora_rank": Foreign(_LORA, (16,)),
    "limit_mm_per_prompt": Foreign(_TEXT_ONLY, accepts=_has_no_media),
    "mm_processor_kwargs": Foreign(_TEXT_ONLY, ({},)),
    "allowed_local_media_path": Foreign(_TEXT_ONLY, ("",)),
    "disable_mm_preprocessor_cache": _switch("", True, False),
    "mm_processor_cache_gb": _anything(),
    "enable_prompt_embeds": _switch("prompts are texts or token ids; leave it out"),
    # Structured outputs, speculation, logging.
    "guided_decoding_backend": Foreign("llguidance compiles every grammar; leave it out", ("auto", "guidance")),
    "structured_outputs_config": Foreign("llguidance compiles every grammar; leave it out", ({},)),
    "logits_processors": Foreign("use logit_bias, allowed_token_ids, bad_words or structured_outputs", ([],)),
    "speculative_model": Foreign(_SPECULATION),
    "num_speculative_tokens": Foreign(_SPECULATION),
    "ngram_prompt_lookup_max": Foreign(_SPECULATION),
    "ngram_prompt_lookup_min": Foreign(_SPECULATION),
    "spec_method": Foreign(_SPECULATION),
    "spec_model": Foreign(_SPECULATION),
    "spec_tokens": Foreign(_SPECULATION),
    "disable_log_stats": _switch("", True, False),  # Nothing is logged in intervals; /metrics always has the numbers.
    "reasoning_parser": Foreign("reasoning is part of the text here; leave it out", ("",)),
    "enable_reasoning": _switch("", True, False),
    "served_model_name": _anything("served_model_name: only clients of archerfish serve name the model"),
}
"""What vLLM's EngineArgs have."""

VLLM_SERVICE: Mapping[str, Foreign] = {
    "api_server_count": Foreign("bodies are read by as many processes as there are cores; leave it out", (1,)),
    "enable_auto_tool_choice": _switch("", True, False),
    "tool_call_parser": Foreign("tool calls are part of the text here; leave it out", renamed="tool_call_format"),
    "response_role": Foreign("the role is always assistant; leave it out", ("assistant",)),
    "chat_template_content_format": Foreign(
        "content is given to a template in the format that it understands; leave it out", ("auto",)
    ),
    "return_tokens_as_token_ids": _switch("replies hold text; send it to /tokenize for its token ids"),
    "enable_prompt_tokens_details": _switch("", True, False),  # Replies always have them.
    "enable_force_include_usage": _switch("give stream_options with each request"),
    "lora_modules": Foreign(_LORA),
    "disable_log_requests": _switch("", True, False),  # No prompt is ever logged; the service logs a line per request.
    "enable_log_requests": _switch("", True, False),
    "max_log_len": _anything(),  # Texts are never logged, so that none is too long.
    "uvicorn_log_level": _anything(
        "uvicorn_log_level: the log has a line for each request and each event of the service, at any level", "info"
    ),
    "disable_uvicorn_access_log": _switch(
        "", True, False, notice="disable_uvicorn_access_log: the log has a line for each request all the same"
    ),
    "disable_fastapi_docs": _switch("have a proxy hide /openapi.json, which is all there is"),
    "disable_frontend_multiprocessing": _switch("the engine is always a process of its own; leave it out"),
    "ssl_keyfile": Foreign("use {tls_key}"),
    "ssl_certfile": Foreign("use {tls_certificate}"),
    "allowed_origins": Foreign("use {cors_origins}"),
    "root_path": Foreign("have the proxy take the prefix away", ("",)),
}
"""What vllm serve has, and EngineArgs have not."""

SGLANG: Mapping[str, Foreign] = {
    "model_path": Foreign("use {model}"),
    "tokenizer_path": Foreign("use {tokenizer}"),
    "context_length": Foreign(_LENGTH),
    "tp": Foreign(_ONE_DEVICE, (1,)),
    "tp_size": Foreign(_ONE_DEVICE, (1,)),
    "pp": Foreign(_ONE_DEVICE, (1,)),
    "dp": Foreign(_REPLICAS, (1,)),
    "dp_size": Foreign(_REPLICAS, (1,)),
    "mem_fraction_static": Foreign("use {gpu_memory_utilization}"),
    "max_running_requests": Foreign(_SEQUENCES),
    "max_total_tokens": Foreign("use {kv_cache_memory_bytes}"),
    "chunked_prefill_size": Foreign(_STEP),
    "max_prefill_tokens": Foreign(_STEP),
    "schedule_policy": Foreign(_PRIORITIES, ("fcfs", "lpm")),
    "page_size": Foreign("use {block_size}"),
    "disable_radix_cache": _switch("use {no_enable_prefix_caching}"),
    "disable_cuda_graph": _switch(_GRAPHS, True, False, notice=f"disable_cuda_graph: {_GRAPHS_NOTICE}"),
    "speculative_algorithm": Foreign(_SPECULATION),
    "speculative_draft_model_path": Foreign(_SPECULATION),
    "speculative_num_draft_tokens": Foreign(_SPECULATION),
    "random_seed": Foreign("use {seed}"),
}

LLAMA_CPP: Mapping[str, Foreign] = {
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
    "fa": _switch("", True, False, words=("on", "off", "auto"), notice=f"-fa: {_ATTENTION}", default=True),
    "flash_attn": _switch(
        "", True, False, words=("on", "off", "auto"), notice=f"flash_attn: {_ATTENTION}", default=True
    ),
    "ctk": Foreign("use {kv_cache_dtype}, which is that of keys and values"),
    "ctv": Foreign("use {kv_cache_dtype}, which is that of keys and values"),
    "cache_type_k": Foreign("use {kv_cache_dtype}, which is that of keys and values"),
    "cache_type_v": Foreign("use {kv_cache_dtype}, which is that of keys and values"),
    "md": Foreign(_SPECULATION),
    "model_draft": Foreign(_SPECULATION),
    "draft_max": Foreign(_SPECULATION),
    "mlock": _switch("weights are not swapped out while they are used; leave it out"),
    "mmap": _switch("", True, False, default=True, notice="mmap: files are always mapped while they are read"),
    "temp": Foreign("use {temperature}"),
    "repeat_penalty": Foreign("use {repetition_penalty}"),
    "grammar_file": Foreign("use {grammar}"),
    "alias": Foreign("use {served_model_name}"),
    "cont_batching": _switch("it is the default; {batching} has others", True, default=True),
}

FOREIGN: Mapping[str, Foreign] = {**VLLM_ENGINE, **VLLM_SERVICE, **SGLANG, **LLAMA_CPP}
"""All of them by name. A setting of ours by the same name always comes first."""
