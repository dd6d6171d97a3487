"""Reads a text with a model in float32 and in each format of its weights, and tells how far each drifts.

Both are read by the engine itself: what is measured is what is served.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from archerfish.compress.drift import Drift, DriftMeter
from archerfish.config.settings import EngineConfig
from archerfish.engine.build import Assembly, build, examine
from archerfish.engine.self_written import NUM_TEXTS, write_texts
from archerfish.errors import ConfigError, StepFailed
from archerfish.execution.local import LocalExecutor
from archerfish.request import SamplingParams

FORMATS: Mapping[str, Mapping[str, Any]] = {
    "bfloat16": {"dtype": "bfloat16"},
    "int8": {"quantization": "int8"},
    "w8a8": {"quantization": "w8a8"},
    "int4, groups of 32": {"quantization": "int4", "quantization_group": 32},
    "int4, groups of 64": {"quantization": "int4"},
    "int4, groups of 64, zero points": {"quantization": "int4", "quantization_zero_points": True},
    "int4, groups of 64, to nearest": {"quantization": "int4", "quantization_rounding": "nearest"},
    "int4, groups of 128": {"quantization": "int4", "quantization_group": 128},
}
_READING = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0)
_ROWS_AT_ONCE = 64
_LONGEST = 512
"""Tokens of a text that are read at once: the original's distributions over all of it are kept meanwhile."""
_SEED = 1 << 20
"""Far from those of the texts that weights are calibrated on: nobody is examined in what he has practised."""

Texts = Sequence[Sequence[int]]
Progress = Callable[[str, float], None]
"""Called with a format's name and the share of its text that has been read."""


@dataclass(frozen=True, slots=True)
class FormatDrift:
    format: str
    drift: Drift


def measure_formats(
    model: str | None, documents: Sequence[str] | None, max_tokens: int, progress: Progress
) -> Iterator[FormatDrift]:
    """Every format's drift in turn: over the documents, or over what the model writes itself in float32."""
    with _opened(model, {"dtype": "float32"}) as original:
        texts = write_texts(original, _SEED).tolist() if documents is None else _cut(original, documents, max_tokens)
        for name, settings in FORMATS.items():
            with _opened(model, settings) as optimized:
                yield FormatDrift(name, _drift(original, optimized, texts, partial(progress, name)))


@contextmanager
def _opened(model: str | None, settings: Mapping[str, Any]) -> Iterator[Assembly]:
    # Nothing but logits is read: a drafter would be loaded for nothing.
    plain: Mapping[str, Any] = {"enable_prefix_caching": False, "speculative_config": {"method": "off"}}
    config = EngineConfig(model=model, max_num_seqs=NUM_TEXTS, **plain, **settings)
    longest = min(_LONGEST + 1, examine(config).config.max_model_len)
    assembly = build(replace(config, max_model_len=longest))
    try:
        yield assembly
    finally:
        assembly.engine.close()


def _cut(assembly: Assembly, documents: Sequence[str], max_tokens: int) -> Texts:
    """The documents in pieces that are read at once, up to so many tokens in all."""
    longest = assembly.config.max_model_len - 1
    texts: list[Sequence[int]] = []
    left = max_tokens
    for document in documents:
        tokens = assembly.processor.token_ids(document)[:left]
        # Of a single token there is nothing to foretell.
        texts += [piece for at in range(0, len(tokens), longest) if len(piece := tokens[at : at + longest]) > 1]
        left -= len(tokens)
        if left < 2:
            break
    if not texts:
        raise ConfigError("the text has no two tokens in a row: there is nothing to foretell; give a longer one")
    return texts


def _drift(original: Assembly, optimized: Assembly, texts: Texts, progress: Callable[[float], None]) -> Drift:
    meter = DriftMeter()
    for done, text in enumerate(texts, 1):
        before, after, following = _logits(original, text), _logits(optimized, text), torch.tensor(text[1:])
        for first in range(0, len(following), _ROWS_AT_ONCE):
            rows = slice(first, first + _ROWS_AT_ONCE)
            meter.add(before[rows], after[rows], following[rows])
        progress(done / len(texts))
    return meter.result()


def _logits(assembly: Assembly, text: Sequence[int]) -> Tensor:
    """[tokens - 1, vocabulary]: what is expected after every token but the last."""
    executor, found = assembly.executor, list[Tensor]()
    assert isinstance(executor, LocalExecutor)
    executor.prompt_listener = lambda logits, _: found.append(logits.clone())
    assembly.engine.add(assembly.processor.request(text, _READING))
    while assembly.engine.has_work:
        assembly.engine.step()
    if assembly.engine.stopped is not None:
        raise StepFailed(assembly.engine.stopped)
    return torch.cat(found)
