"""Texts that a model generates for training: answers to prompts, or texts from openings of its own.

Knows no drafter.
"""

import gc
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from archerfish.compress.drafters.options import DrafterOptions
from archerfish.compress.drafters.prompts import Prompt, read_prompts
from archerfish.config.settings import EngineConfig
from archerfish.console import logger
from archerfish.engine.llm import LLM
from archerfish.errors import ConfigError, ModelError
from archerfish.request import SamplingParams

_HELD_OUT = 16
"""One sample in so many is held out for measuring."""
_AT_ONCE = {"cpu": 64, "cuda": 1024}
"""Samples that are generated at once."""
_TEMPERATURES = (0.0, 0.25, 0.0, 0.5, 0.0, 0.75, 0.0, 1.0)
"""Temperatures of the samples in turn: half are greedy, the others as varied as requests are."""
_SHARES_GIVEN = (1 / 16, 1 / 4, 1 / 2)
"""Shares of a text that are its opening, in turn."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Samples:
    tokens: Tensor
    """[samples, length] int32, with zeros behind each text's end."""
    lengths: Tensor
    """[samples] int32: tokens of each text."""
    given: Tensor
    """[samples] int32: number of first tokens that are not predicted."""
    num_training: int
    """Number of samples to train on, which come first; the others are held out, and share no prompt with them."""

    @property
    def num_held_out(self) -> int:
        return len(self.tokens) - self.num_training

    @property
    def num_tokens(self) -> int:
        return int(self.lengths.sum())

    def frequent(self, count: int, vocab_size: int) -> Tensor:
        """Return the most frequent ids of the training samples, in ascending order; among equals the smaller ones."""
        positions = torch.arange(self.tokens.shape[1])
        written = (positions < self.lengths[:, None]) & (positions >= self.given[:, None])
        counted = torch.bincount(
            self.tokens[: self.num_training][written[: self.num_training]].long(), minlength=vocab_size
        )
        return counted.sort(descending=True, stable=True).indices[:count].sort().values

    def save(self, path: Path) -> None:
        fields = {"tokens": self.tokens, "lengths": self.lengths, "given": self.given}
        fields["num_training"] = torch.tensor(self.num_training)
        new = path.with_suffix(".new")
        save_file(fields, new)
        new.replace(path)

    @classmethod
    def load(cls, path: Path) -> "Samples":
        fields: dict[str, Any] = load_file(path)
        return cls(**{**fields, "num_training": int(fields["num_training"])})


def write_samples(config: EngineConfig, options: DrafterOptions, device: str) -> Samples:
    """Generate samples. The same options give the same samples, on a device of the same kind."""
    prompts = None if options.prompts is None else read_prompts(Path(options.prompts))
    llm = LLM(**_settings(config, options, device, has_prompts=prompts is not None))
    try:
        if prompts is None:
            given, count = _beginnings(llm, options), [1] * options.samples
        else:
            given = _encoded(llm, prompts, options)
            count = [len(tokens) for tokens in given]
        answers = _answers(llm, given, options, ignore_eos=prompts is None)
    finally:
        llm.close()
        # The memory that it holds on the device is needed next, and freed only with its reference cycles.
        del llm
        gc.collect()
        if device == "cuda":
            torch.cuda.empty_cache()
    return _arranged(given, answers, count, options)


def _settings(config: EngineConfig, options: DrafterOptions, device: str, *, has_prompts: bool) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "model": config.model,
        "revision": config.revision,
        "threads": config.threads,
        "device": device,
    }
    if device == "cuda":
        settings["gpu_memory_utilization"] = 0.5
    return {
        **settings,
        "hf_overrides": config.hf_overrides,
        "load_format": config.load_format,
        "seed": options.seed,
        "skip_tokenizer_init": not has_prompts,
        "max_num_seqs": min(_AT_ONCE[device], options.samples),
    }


def _beginnings(llm: LLM, options: DrafterOptions) -> list[list[int]]:
    """Return openings drawn at temperature 1, as varied as the model is."""
    start = llm.assembly.start_token_id
    lengths = [max(1, int(options.length * _SHARES_GIVEN[n % len(_SHARES_GIVEN)])) for n in range(options.samples)]
    params = [
        SamplingParams(temperature=1.0, seed=_seed(options, number, 0), max_tokens=length, ignore_eos=True)
        for number, length in enumerate(lengths)
    ]
    return [[start, *tokens] for tokens in _written(llm, [[start]] * options.samples, params)]


def _encoded(llm: LLM, prompts: Sequence[Prompt], options: DrafterOptions) -> list[list[int]]:
    """Return as many prompts as samples, in their order, repeated as needed; prompts that are too long are left out."""
    processor = llm.assembly.processor
    longest = options.length - options.depths - 2
    encoded = []
    for prompt in prompts:
        if isinstance(prompt, str):
            tokens = list(processor.token_ids(prompt))
        else:
            # The template has already written the special tokens.
            text = processor.chat_text(prompt, add_generation_prompt=True)
            tokens = list(processor.token_ids(text, add_special_tokens=False))
        if 1 <= len(tokens) <= longest:
            encoded.append(tokens)
    if len(encoded) < len(prompts):
        logger.info("%d prompts of more than %d tokens are left out", len(prompts) - len(encoded), longest)
    if len({tuple(tokens) for tokens in encoded}) < 2:
        raise ConfigError(
            f"fewer than two prompts leave space for an answer in --length {options.length}: make it longer"
        )
    return [encoded[number * len(encoded) // options.samples] for number in range(options.samples)]


def _answers(llm: LLM, given: list[list[int]], options: DrafterOptions, *, ignore_eos: bool) -> list[list[int]]:
    params = [
        SamplingParams(
            temperature=_TEMPERATURES[number % len(_TEMPERATURES)],
            seed=_seed(options, number, 1),
            max_tokens=options.length - len(tokens),
            ignore_eos=ignore_eos,
        )
        for number, tokens in enumerate(given)
    ]
    return _written(llm, given, params)


def _written(llm: LLM, prompts: list[list[int]], params: list[SamplingParams]) -> list[list[int]]:
    outputs = llm.generate(prompts, params)
    for output in outputs:
        if output.outputs[0].finish_reason == "error":
            raise ModelError("the model cannot write texts to learn from: its logits are not finite")
    return [list(output.outputs[0].token_ids) for output in outputs]


def _seed(options: DrafterOptions, number: int, part: int) -> int:
    return (options.seed * options.samples + number) * 2 + part


def _arranged(
    beginnings: list[list[int]], answers: list[list[int]], given: list[int], options: DrafterOptions
) -> Samples:
    tokens = torch.zeros(len(beginnings), options.length, dtype=torch.int32)
    lengths = torch.zeros(len(beginnings), dtype=torch.int32)
    for row, (before, after) in enumerate(zip(beginnings, answers, strict=True)):
        lengths[row] = len(before) + len(after)
        tokens[row, : lengths[row]] = torch.tensor(before + after, dtype=torch.int32)
    num_training = len(beginnings) - max(1, len(beginnings) // _HELD_OUT)
    # All answers to a prompt are on the same side.
    while num_training and beginnings[num_training - 1] == beginnings[num_training]:
        num_training -= 1
    if not num_training:
        raise ConfigError(f"--samples {options.samples} leave none to train on after those held out: use more")
    return Samples(
        tokens=tokens,
        lengths=lengths,
        given=torch.tensor(given, dtype=torch.int32),
        num_training=num_training,
    )
