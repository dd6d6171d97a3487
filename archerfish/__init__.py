"""Archerfish: an LLM inference engine, service and optimizer.

The package imports nothing heavy by itself: torch is loaded when an LLM is made, neither by `import archerfish` nor by
`from archerfish import LLM`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from archerfish.machine import calm_threads, hide_broken_amx

# Before torch is imported anywhere: its libraries read their variables once.
hide_broken_amx()
calm_threads()

__version__ = "0.1.0"

if TYPE_CHECKING:
    from archerfish.engine.llm import LLM
    from archerfish.engine.outputs import CompletionOutput, RequestOutput
    from archerfish.errors import ArcherfishError
    from archerfish.request import SamplingParams, Speculation, Structured

_HOME = {
    "LLM": "archerfish.engine.llm",
    "CompletionOutput": "archerfish.engine.outputs",
    "RequestOutput": "archerfish.engine.outputs",
    "ArcherfishError": "archerfish.errors",
    "SamplingParams": "archerfish.request",
    "Speculation": "archerfish.request",
    "Structured": "archerfish.request",
}

__all__ = [
    "LLM",
    "ArcherfishError",
    "CompletionOutput",
    "RequestOutput",
    "SamplingParams",
    "Speculation",
    "Structured",
    "__version__",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'archerfish' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
