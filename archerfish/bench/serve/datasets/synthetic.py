"""Loads of random words: lengths around a mean, and repeated prefixes."""

import numpy as np

from archerfish.bench.serve.datasets.options import DatasetOptions
from archerfish.bench.serve.datasets.sample import Sample
from archerfish.bench.serve.datasets.words import MadeText, Words


def random_samples(options: DatasetOptions, words: Words, num_samples: int, seed: int) -> list[Sample]:
    """Return samples with uniform lengths between mean x (1 - ratio) and mean x (1 + ratio), after a shared prefix."""
    rng = np.random.default_rng(seed)
    prefix = words.make(rng, options.random_prefix_len) if options.random_prefix_len else MadeText("", 0)
    inputs = _lengths(rng, options.random_input_len, options.random_range_ratio, num_samples)
    outputs = _lengths(rng, options.random_output_len, options.random_range_ratio, num_samples)
    return [_join(prefix, words.make(rng, num_in), num_out) for num_in, num_out in zip(inputs, outputs, strict=True)]


def prefix_repetition(options: DatasetOptions, words: Words, num_samples: int, seed: int) -> list[Sample]:
    """Return samples with every prefix equally often, each time with another suffix, in random order."""
    rng = np.random.default_rng(seed)
    num_prefixes = min(options.prefix_repetition_num_prefixes, num_samples)
    prefixes = [words.make(rng, options.prefix_repetition_prefix_len) for _ in range(num_prefixes)]
    indices = rng.permutation(np.arange(num_samples) % num_prefixes).tolist()
    num_out = options.prefix_repetition_output_len
    return [_join(prefixes[index], words.make(rng, options.prefix_repetition_suffix_len), num_out) for index in indices]


def _lengths(rng: np.random.Generator, mean: int, ratio: float, count: int) -> list[int]:
    lowest, highest = max(1, int(mean * (1 - ratio))), max(1, int(mean * (1 + ratio)))
    return list(rng.integers(lowest, highest + 1, size=count).tolist())


def _join(prefix: MadeText, rest: MadeText, num_output_tokens: int) -> Sample:
    counted = prefix.num_tokens is not None and rest.num_tokens is not None
    return Sample(
        prompt=prefix.text + rest.text,
        num_prompt_tokens=(prefix.num_tokens or 0) + (rest.num_tokens or 0) if counted else None,
        num_output_tokens=num_output_tokens,
        must_write_all=True,
        num_shared_tokens=prefix.num_tokens if prefix.num_tokens is not None else len(prefix.text.split()),
    )
