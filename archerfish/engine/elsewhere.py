"""What vLLM's classes have and ours have not, and what takes its place: named in errors instead of an unknown name."""

from collections.abc import Mapping
from typing import Any

from archerfish.errors import InvalidParameter

NOT_IN_LLM = {
    "llm_engine": "LLM.llm_engine: the engine and its parts are in LLM.assembly",
    "model_config": "LLM.model_config: the settings that run are in LLM.assembly.config, the model's sizes in "
    "LLM.assembly.arch",
    "get_metrics": "LLM.get_metrics: each output has metrics; their sums are in LLM.assembly.engine.counts",
    "sleep": "LLM.sleep: close() frees all memory; make another LLM when it is needed again",
    "wake_up": "LLM.wake_up: there is no sleep; make another LLM after close()",
    "start_profile": "LLM.start_profile: use archerfish bench, which says where time goes",
    "stop_profile": "LLM.stop_profile: use archerfish bench, which says where time goes",
    "collective_rpc": "LLM.collective_rpc: there are no workers; the executor is LLM.assembly.executor",
    "apply_model": "LLM.apply_model: there are no workers; the executor is LLM.assembly.executor",
    "reward": "LLM.reward: no model here has a reward head; the states that one would read are encode's token_embed",
    "enqueue": "LLM.enqueue: give generate all prompts at once, or use AsyncLLM",
    "set_tokenizer": "LLM.set_tokenizer: give LLM(tokenizer=...) when it is made",
}
"""Attributes of vLLM's LLM, and what takes their place."""

NOT_IN_ASYNC_LLM = {
    "model_config": "AsyncLLM.model_config: the settings are those that were given to AsyncEngineArgs",
    "get_model_config": "AsyncLLM.get_model_config: the settings are those that were given to AsyncEngineArgs",
    "engine": "AsyncLLM.engine: the engine is a process of its own, and is not reached from here",
    "sleep": "AsyncLLM.sleep: shutdown() frees all memory; make another AsyncLLM when it is needed again",
    "wake_up": "AsyncLLM.wake_up: there is no sleep; make another AsyncLLM after shutdown()",
    "add_lora": "AsyncLLM.add_lora: LoRA adapters are not supported; merge the adapter into the checkpoint",
    "start_profile": "AsyncLLM.start_profile: use archerfish bench, which says where time goes",
    "reset_prefix_cache": "AsyncLLM.reset_prefix_cache: give requests a cache_salt of their own",
}
"""The same of AsyncLLM."""

_UNSUPPORTED = {
    "lora_request": "LoRA adapters are not supported; merge the adapter into the checkpoint",
    "prompt_adapter_request": "prompt adapters are not supported",
    "mm_processor_kwargs": "only text is read",
    "tokenization_kwargs": "give token ids as the prompt, or truncate_prompt_tokens among the sampling parameters",
    "guided_options_request": "use structured_outputs among the sampling parameters",
    "prompt_token_ids": 'give {"prompt_token_ids": ids}, or the token ids themselves, as the prompt',
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
