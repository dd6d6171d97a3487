"""Options of the dataset: which prompts, how long, from which file. Reads nothing."""

from dataclasses import dataclass, fields
from typing import Literal

from archerfish.errors import ConfigError

_LENGTHS = (
    *("output_len", "random_input_len", "random_output_len", "prefix_repetition_prefix_len"),
    *("prefix_repetition_suffix_len", "prefix_repetition_num_prefixes", "prefix_repetition_output_len"),
)
_FILES = ("sharegpt", "custom", "azure", "mooncake")
# Datasets that an option is for, by the beginning of its name.
_USED_BY = {
    "dataset_path": _FILES,
    "output_len": ("sharegpt", "custom", "box"),
    "random_": ("random",),
    "prefix_repetition_": ("prefix_repetition",),
    "length_scale": ("azure", "mooncake"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetOptions:
    """Options of the dataset, validated on creation."""

    dataset_name: Literal["random", "prefix_repetition", "sharegpt", "custom", "azure", "mooncake", "box"] = "random"
    """Prompts to send: random words, repeated prefixes, conversations in ShareGPT's JSON, custom prompts (JSONL), \
traces of Azure (CSV) or Mooncake (JSONL), or prompts for the bundled models (box)."""
    dataset_path: str | None = None
    """File of the dataset."""
    output_len: int | None = None
    """sharegpt, custom, box: maximum output tokens, instead of the file's or 256."""
    random_input_len: int = 512
    """random: prompt length in tokens."""
    random_output_len: int = 128
    """random: output length in tokens."""
    random_range_ratio: float = 0.0
    """random: lengths vary between 1 - ratio and 1 + ratio times the ones above."""
    random_prefix_len: int = 0
    """random: length of a prefix that all prompts share, in addition to the prompt length."""
    prefix_repetition_prefix_len: int = 256
    """prefix_repetition: prefix length in tokens."""
    prefix_repetition_suffix_len: int = 256
    """prefix_repetition: length of each prompt after its prefix."""
    prefix_repetition_num_prefixes: int = 10
    """prefix_repetition: number of distinct prefixes."""
    prefix_repetition_output_len: int = 128
    """prefix_repetition: output length in tokens."""
    length_scale: float = 1.0
    """azure, mooncake: factor on the lengths of the trace, for models with less context."""

    def __post_init__(self) -> None:
        for field in fields(self):
            users = next((users for start, users in _USED_BY.items() if field.name.startswith(start)), None)
            is_used = users is None or self.dataset_name in users
            if not is_used and getattr(self, field.name) != field.default:
                raise ConfigError(
                    f"--{field.name.replace('_', '-')} is for --dataset-name {' or '.join(users or ())}, "
                    f"not {self.dataset_name}: leave it out"
                )
        for name in _LENGTHS:
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise ConfigError(f"--{name.replace('_', '-')} must be at least 1")
        if not 0 <= self.random_range_ratio < 1 or self.random_prefix_len < 0:
            raise ConfigError("--random-range-ratio must be from 0 to below 1, and --random-prefix-len not negative")
        if not self.length_scale > 0:
            raise ConfigError("--length-scale must be more than 0")
