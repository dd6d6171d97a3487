"""The prompts of a load: generated, or read from files in the usual formats."""

from collections.abc import Callable
from typing import NamedTuple

from archerfish.bench.serve.datasets.files import box_prompts, jsonl_prompts, sharegpt
from archerfish.bench.serve.datasets.options import DatasetOptions
from archerfish.bench.serve.datasets.sample import Sample, SampleMessage
from archerfish.bench.serve.datasets.synthetic import prefix_repetition, random_samples
from archerfish.bench.serve.datasets.traces import azure, mooncake
from archerfish.bench.serve.datasets.words import Words

__all__ = ["DATASETS", "DatasetOptions", "Sample", "SampleMessage", "Words", "make_samples"]


class _Kind(NamedTuple):
    make: Callable[[DatasetOptions, Words, int, int], list[Sample]]
    is_trace: bool = False
    """Return whether the dataset has arrival times."""


DATASETS = {
    "random": _Kind(random_samples),
    "prefix_repetition": _Kind(prefix_repetition),
    "sharegpt": _Kind(sharegpt),
    "custom": _Kind(jsonl_prompts),
    "azure": _Kind(azure, is_trace=True),
    "mooncake": _Kind(mooncake, is_trace=True),
    "box": _Kind(box_prompts),
}


def make_samples(options: DatasetOptions, words: Words, num_samples: int, seed: int) -> list[Sample]:
    """Return so many requests, the same for the same seed."""
    return DATASETS[options.dataset_name].make(options, words, num_samples, seed)
