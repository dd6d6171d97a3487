"""What vLLM's classes have and ours have not, and what takes its place: named in errors instead of an unknown name."""

from collections.abc import Mapping
from typing import Any

from archerfish.errors import InvalidParameter

_PARTS = "the engine and its parts are in LLM.assembly"
_AT_ONCE = "give generate or chat all prompts at once, or use AsyncLLM"
_PROFILE = "use archerfish bench, which says where time goes"
_WORKERS = "there are no workers; the executor is LLM.assembly.executor"
_WEIGHTS = "weights are read once; make another one when they have changed"
_MEDIA = "only text is read, so there is no cache of media"
_LORA = "LoRA adapters are not supported; merge the adapter into the checkpoint"
_PAUSE = "abort the requests, or stop giving it new ones"
_SETTINGS = "the settings are those that were given to AsyncEngineArgs"

_NOT_IN_LLM = {
    "llm_engine": _PARTS,
    "input_processor": _PARTS,
    "processor": _PARTS,
    "renderer": _PARTS,
    "model_config": "the settings that run are in LLM.assembly.config, the model's sizes in LLM.assembly.arch",
    "get_metrics": "each output has metrics; their sums are in LLM.assembly.engine.counts",
    "supported_tasks": "every model generates, and embeds with the tasks embed and token_embed",
    "runner_type": "every model generates and embeds",
    "sleep": "close() frees all memory; make another LLM when it is needed again",
    "wake_up": "there is no sleep; make another LLM after close()",
    "start_profile": _PROFILE,
    "stop_profile": _PROFILE,
    "collective_rpc": _WORKERS,
    "apply_model": _WORKERS,
    "get_world_size": "a model runs on one device",
    "reward": "no model here has a reward head; the states that one would read are encode's token_embed",
    "preprocess_chat": "use LLM.get_tokenizer().apply_chat_template",
    "enqueue": _AT_ONCE,
    "enqueue_chat": _AT_ONCE,
    "wait_for_completion": _AT_ONCE,
    "set_tokenizer": "give LLM(tokenizer=...) when it is made",
    "reset_mm_cache": _MEDIA,
    "init_weight_transfer_engine": _WEIGHTS,
    "update_weights": _WEIGHTS,
}
_NOT_IN_ASYNC_LLM = {
    "model_config": _SETTINGS,
    "vllm_config": _SETTINGS,
    "get_model_config": _SETTINGS,
    "get_vllm_config": _SETTINGS,
    "get_decoding_config": _SETTINGS,
    "get_parallel_config": _SETTINGS,
    "get_scheduler_config": _SETTINGS,
    "get_lora_config": _SETTINGS,
    "from_vllm_config": "use AsyncLLM.from_engine_args",
    "engine": "the engine is a process of its own, and is not reached from here",
    "engine_core": "the engine is a process of its own, and is not reached from here",
    "input_processor": "requests are made by generate and encode",
    "processor": "requests are made by generate and encode",
    "get_input_preprocessor": "requests are made by generate and encode",
    "add_request": "iterate over generate(), which adds the request",
    "beam_search": "LLM has it",
    "get_supported_tasks": "every model generates, and embeds with the tasks embed and token_embed",
    "sleep": "shutdown() frees all memory; make another AsyncLLM when it is needed again",
    "wake_up": "there is no sleep; make another AsyncLLM after shutdown()",
    "is_sleeping": "there is no sleep",
    "pause_generation": _PAUSE,
    "resume_generation": _PAUSE,
    "is_paused": _PAUSE,
    "wait_for_requests_to_drain": "await the loops over generate()",
    "add_lora": _LORA,
    "remove_lora": _LORA,
    "list_loras": _LORA,
    "pin_lora": _LORA,
    "start_profile": _PROFILE,
    "stop_profile": _PROFILE,
    "do_log_stats": "nothing is logged in intervals; each output has metrics",
    "is_tracing_enabled": "traces are made by archerfish serve",
    "collective_rpc": "there are no workers",
    "scale_elastic_ep": "a model runs on one device",
    "init_weight_transfer_engine": _WEIGHTS,
    "update_weights": _WEIGHTS,
    "reset_prefix_cache": "give requests a cache_salt of their own",
    "reset_mm_cache": _MEDIA,
    "reset_encoder_cache": _MEDIA,
}


def why_missing(class_name: str, attribute: str) -> str:
    """Return what to say of an attribute that a class has not, with what takes its place where vLLM has one."""
    instead = _MISSING[class_name].get(attribute)
    if instead is None:
        return f"{class_name} has no attribute {attribute!r}"
    return f"{class_name}.{attribute} is not there: {instead}"


_MISSING = {"LLM": _NOT_IN_LLM, "AsyncLLM": _NOT_IN_ASYNC_LLM}
"""Attributes of vLLM's classes, and what takes their place."""

_UNSUPPORTED = {
    "lora_request": "LoRA adapters are not supported; merge the adapter into the checkpoint",
    "prompt_adapter_request": "prompt adapters are not supported",
    "mm_processor_kwargs": "only text is read",
    "multi_modal_data": "only text is read",
    "chat_template": "texts are embedded as they are; lay them out before",
    "tokenization_kwargs": "give token ids as the prompt, or truncate_prompt_tokens",
    "guided_options_request": "use structured_outputs among the sampling parameters",
    "trace_headers": "traces are made by archerfish serve",
    "data_parallel_rank": "there is one engine",
    "prompt_text": 'give {"prompt_token_ids": ids, "prompt": text} as the prompt',
}


def refuse_unsupported(method: str, given: Mapping[str, Any]) -> None:
    """Arguments that vLLM's method has and this one has not: fine where they ask for nothing."""
    for name, value in given.items():
        if name not in _UNSUPPORTED:
            raise TypeError(f"{method}() got an unexpected keyword argument {name!r}")
        if value is not None and value != {} and value != []:
            raise InvalidParameter(name, value, _UNSUPPORTED[name])
