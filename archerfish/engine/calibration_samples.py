"""Text that a model writes itself, from nothing but its first token, for calibration where no text is given.

Draws are seeded: the same model writes the same text every time.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from archerfish.config.resolve import MOST_CALIBRATED_PARAMETERS, ResolvedConfig
from archerfish.config.settings import EngineConfig, flag_name
from archerfish.console import ProgressBar, logger
from archerfish.engine.driver import EngineDriver
from archerfish.errors import ModelError
from archerfish.request import SamplingParams, TokenEvent

if TYPE_CHECKING:
    from archerfish.engine.build import Assembly

NUM_TEXTS = 32
LONGEST_TEXT = 128
"""Tokens. In all that is twice as many as the 2,048 with which perch's int4 diverged a tenth more than with 16,384."""


def write_texts(assembly: "Assembly", first_seed: int) -> Tensor:
    """Return the token ids [texts, length] of texts that the model writes."""
    engine, start = assembly.engine, assembly.start_token_id
    length = min(LONGEST_TEXT, assembly.config.max_model_len)
    texts: dict[str, list[int]] = {}
    for seed in range(first_seed, first_seed + NUM_TEXTS):
        params = SamplingParams(temperature=1.0, seed=seed, max_tokens=length - 1, ignore_eos=True)
        request = assembly.processor.request((start,), params)
        engine.add(request)
        texts[request.request_id] = [start]

    def take(event: TokenEvent, _now: float) -> None:
        if event.error is not None:
            raise ModelError(f"the model cannot write a text of its own: {event.error}")
        texts[event.request_id] += event.token_ids

    driver = EngineDriver(engine, take)
    with ProgressBar("writing a text", NUM_TEXTS * length) as bar:
        while engine.has_work:
            driver.step()
            bar.update(sum(map(len, texts.values())))
    return torch.tensor(list(texts.values()))


def calibration_texts(
    config: EngineConfig, resolved: ResolvedConfig, build: "Callable[[EngineConfig], Assembly]"
) -> Tensor | None:
    """What the model writes in int8, which all kernels compute alike; None where nothing is calibrated."""
    if resolved.quantization_rounding != "calibrated":
        if resolved.quantization == "int4" and config.quantization_rounding == "auto":
            most = f"{MOST_CALIBRATED_PARAMETERS / 1e6:,.0f}M"
            logger.info("int4 is rounded to nearest: calibrated are real weights, of up to %s parameters", most)
        return None
    logger.info("int4 is calibrated on a text that the model writes first, in int8")
    writer = build(
        replace(
            config,
            quantization="int8",
            quantization_group=64,
            quantization_zero_points=False,
            quantization_rounding="auto",
            skip_tokenizer_init=True,
            max_num_seqs=NUM_TEXTS,
            max_num_batched_tokens=None,
            kv_cache_memory_bytes=None,
        )
    )
    try:
        return write_texts(writer, first_seed=0)
    except ModelError as error:
        raise ModelError(f"{error}; use {flag_name('quantization_rounding')} nearest") from error
    finally:
        writer.engine.close()
