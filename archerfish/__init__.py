"""Archerfish: an LLM inference engine, service and optimizer.

The package imports nothing heavy by itself: torch is loaded when an LLM is made, neither by `import archerfish` nor by
`from archerfish import LLM`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from archerfish.machine.cpu import hide_broken_amx, limit_thread_spinning

# Before torch is imported anywhere: its libraries read their variables once.
hide_broken_amx()
limit_thread_spinning()

__version__ = "0.1.0"

if TYPE_CHECKING:
    from archerfish.config.engine_args import AsyncEngineArgs, EngineArgs
    from archerfish.engine.async_llm import AsyncLLM, AsyncLLMEngine
    from archerfish.engine.beam_search import BeamSearchOutput, BeamSearchSequence
    from archerfish.engine.llm import LLM
    from archerfish.engine.outputs import CompletionOutput, RequestOutput
    from archerfish.engine.pooling import (
        EmbeddingOutput,
        EmbeddingRequestOutput,
        PoolingOutput,
        PoolingParams,
        PoolingRequestOutput,
        ScoringOutput,
        ScoringRequestOutput,
    )
    from archerfish.engine.prompts import PromptType, TextPrompt, TokensPrompt
    from archerfish.errors import ArcherfishError
    from archerfish.sampling_params import BeamSearchParams, RequestOutputKind, SamplingParams, Speculation
    from archerfish.structured_outputs import GuidedDecodingParams, Structured, StructuredOutputsParams

_HOME = {
    "AsyncEngineArgs": "archerfish.config.engine_args",
    "EngineArgs": "archerfish.config.engine_args",
    "AsyncLLM": "archerfish.engine.async_llm",
    "AsyncLLMEngine": "archerfish.engine.async_llm",
    "BeamSearchOutput": "archerfish.engine.beam_search",
    "BeamSearchSequence": "archerfish.engine.beam_search",
    "LLM": "archerfish.engine.llm",
    "CompletionOutput": "archerfish.engine.outputs",
    "RequestOutput": "archerfish.engine.outputs",
    "EmbeddingOutput": "archerfish.engine.pooling",
    "EmbeddingRequestOutput": "archerfish.engine.pooling",
    "PoolingOutput": "archerfish.engine.pooling",
    "PoolingParams": "archerfish.engine.pooling",
    "PoolingRequestOutput": "archerfish.engine.pooling",
    "ScoringOutput": "archerfish.engine.pooling",
    "ScoringRequestOutput": "archerfish.engine.pooling",
    "PromptType": "archerfish.engine.prompts",
    "TextPrompt": "archerfish.engine.prompts",
    "TokensPrompt": "archerfish.engine.prompts",
    "ArcherfishError": "archerfish.errors",
    "BeamSearchParams": "archerfish.sampling_params",
    "RequestOutputKind": "archerfish.sampling_params",
    "SamplingParams": "archerfish.sampling_params",
    "Speculation": "archerfish.sampling_params",
    "GuidedDecodingParams": "archerfish.structured_outputs",
    "Structured": "archerfish.structured_outputs",
    "StructuredOutputsParams": "archerfish.structured_outputs",
}

__all__ = [
    "LLM",
    "ArcherfishError",
    "AsyncEngineArgs",
    "AsyncLLM",
    "AsyncLLMEngine",
    "BeamSearchOutput",
    "BeamSearchParams",
    "BeamSearchSequence",
    "CompletionOutput",
    "EmbeddingOutput",
    "EmbeddingRequestOutput",
    "EngineArgs",
    "GuidedDecodingParams",
    "PoolingOutput",
    "PoolingParams",
    "PoolingRequestOutput",
    "PromptType",
    "RequestOutput",
    "RequestOutputKind",
    "SamplingParams",
    "ScoringOutput",
    "ScoringRequestOutput",
    "Speculation",
    "Structured",
    "StructuredOutputsParams",
    "TextPrompt",
    "TokensPrompt",
    "__version__",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'archerfish' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return __all__
