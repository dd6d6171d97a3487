"""Measures how far each lossy format of weights and KV cache drifts from the float32 model over a text.

The engine itself reads the text both times: what is measured is what is served.
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
from archerfish.engine.calibration_samples import NUM_TEXTS, write_texts
from archerfish.engine.driver import EngineDriver
from archerfish.errors import ConfigError
from archerfish.request import SamplingParams

Settings = Mapping[str, Any]

WEIGHT_FORMATS: Mapping[str, Settings] = {
    "bfloat16": {"dtype": "bfloat16"},
    "int8": {"quantization": "int8"},
    "w8a8": {"quantization": "w8a8"},
    "int4, groups of 32": {"quantization": "int4", "quantization_group": 32},
    "int4, groups of 64": {"quantization": "int4"},
    "int4, groups of 64, zero points": {"quantization": "int4", "quantization_zero_points": True},
    "int4, groups of 64, to nearest": {"quantization": "int4", "quantization_rounding": "nearest"},
    "int4, groups of 128": {"quantization": "int4", "quantization_group": 128},
}
"""Formats of weights, with the activations that belong to them, on any device."""
CPU_FORMATS: Mapping[str, Settings] = {
    "KV cache bfloat16": {"dtype": "float32", "kv_cache_dtype": "bfloat16"},
    "KV cache int8": {"dtype": "float32", "kv_cache_dtype": "int8"},
}
GPU_FORMATS: Mapping[str, Settings] = {
    "fp8": {"quantization": "fp8"},
    "KV cache fp8": {"dtype": "bfloat16", "kv_cache_dtype": "fp8"},
}
_READING = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0)
_ROWS_AT_ONCE = 64
_LONGEST = 512
"""Tokens of a text that are read at once: the original's distributions over all of it stay in memory meanwhile."""
_SEED = 1 << 20
"""Differs from the seeds of the texts that weights are calibrated on, which would show too little drift."""

Texts = Sequence[Sequence[int]]
Progress = Callable[[str, float], None]
"""Called with a format's name and the share of its text that has been read."""


@dataclass(frozen=True, slots=True)
class FormatDrift:
    """The drift of one format, or why it could not be measured."""

    format: str
    drift: Drift | None
    reason: str | None = None


def lossy_formats(device: str) -> Mapping[str, Settings]:
    """Return every lossy format that engines have on a device, by name."""
    return {**WEIGHT_FORMATS, **(CPU_FORMATS if device == "cpu" else GPU_FORMATS)}


def measure_formats(
    model: str | None,
    documents: Sequence[str] | None,
    max_tokens: int,
    formats: Mapping[str, Settings],
    progress: Progress,
) -> Iterator[FormatDrift]:
    """Yield each format's drift, over the documents or over a text that the model writes in float32."""
    with _opened(model, {"dtype": "float32"}) as original:
        texts = write_texts(original, _SEED).tolist() if documents is None else _cut(original, documents, max_tokens)
        for name, settings in formats.items():
            try:
                with _opened(model, settings) as optimized:
                    yield FormatDrift(name, _drift(original, optimized, texts, partial(progress, name)))
            except ConfigError as error:
                yield FormatDrift(name, None, str(error))


@contextmanager
def _opened(model: str | None, settings: Settings) -> Iterator[Assembly]:
    # Only logits are read: a drafter would be loaded in vain.
    plain: Mapping[str, Any] = {"enable_prefix_caching": False, "speculative_config": {"method": "off"}}
    config = EngineConfig(model=model, max_num_seqs=NUM_TEXTS, **plain, **settings)
    longest = min(_LONGEST + 1, examine(config).config.max_model_len)
    assembly = build(replace(config, max_model_len=longest))
    try:
        yield assembly
    finally:
        assembly.engine.close()


def _cut(assembly: Assembly, documents: Sequence[str], max_tokens: int) -> Texts:
    """Cut documents into pieces that are read at once, up to `max_tokens` in all."""
    longest = assembly.config.max_model_len - 1
    texts: list[Sequence[int]] = []
    left = max_tokens
    for document in documents:
        tokens = assembly.processor.token_ids(document)[:left]
        # A single token has no successor to predict.
        texts += [piece for at in range(0, len(tokens), longest) if len(piece := tokens[at : at + longest]) > 1]
        left -= len(tokens)
        if left < 2:
            break
    if not texts:
        raise ConfigError("--text is shorter than two tokens, so there is nothing to predict; give a longer text")
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
    """Return the logits [tokens - 1, vocabulary] of every position but the last."""
    pieces: list[Tensor] = []
    executor: Any = assembly.executor
    executor.state.prompt_outputs.listener = lambda logits, _: pieces.append(logits.float().to("cpu", copy=True))
    assembly.engine.add(assembly.processor.request(text, _READING))
    EngineDriver(assembly.engine, lambda _event, _now: None).run()
    return torch.cat(pieces)
