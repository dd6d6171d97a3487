"""Recorded arrivals: Azure's CSV and Mooncake's JSONL, with generated texts of their lengths and shared prefixes."""

import csv
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

import numpy as np

from archerfish.bench.serve.datasets.files import needed_path, parsed_objects, read_text
from archerfish.bench.serve.datasets.options import DatasetOptions
from archerfish.bench.serve.datasets.sample import Sample
from archerfish.bench.serve.datasets.words import MadeText, Words
from archerfish.errors import ConfigError

_AZURE_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_MOONCAKE_BLOCK = 512
"""Tokens per hash of a Mooncake trace."""


class _Row(NamedTuple):
    time: float
    num_in: int
    num_out: int
    hashes: tuple[int, ...]
    """Hashes of its blocks; empty if the trace has none."""


def azure(options: DatasetOptions, words: Words, num_samples: int, seed: int) -> list[Sample]:
    """Return the times and lengths of Azure's services; texts share nothing."""
    path = needed_path(options)
    rows = csv.DictReader(read_text(path).splitlines())
    if tuple(rows.fieldnames or ()) != _AZURE_COLUMNS:
        raise ConfigError(f"{path} must have the columns {', '.join(_AZURE_COLUMNS)}, but has {rows.fieldnames}")
    records = []
    for number, row in enumerate(rows, 2):
        try:
            time = datetime.fromisoformat(row["TIMESTAMP"]).timestamp()
            records.append(_Row(time, int(row["ContextTokens"]), int(row["GeneratedTokens"]), ()))
        except (TypeError, ValueError) as error:
            raise ConfigError(f"{path}, line {number}: {error}") from error
        if len(records) == num_samples:
            break
    rng = np.random.default_rng(seed)
    samples = []
    for record in _enough(records, num_samples, path):
        text = words.make(rng, _scaled(record.num_in, options))
        samples.append(_sample(record, text, 0, options))
    return samples


def mooncake(options: DatasetOptions, words: Words, num_samples: int, seed: int) -> list[Sample]:
    """Return times, lengths and shared prefixes: equal hashes at the beginning of two requests give equal texts."""
    path = needed_path(options)
    records = []
    for where, value in parsed_objects(path):
        try:
            hashes = tuple(int(block_hash) for block_hash in value["hash_ids"])
            records.append(
                _Row(value["timestamp"] / 1000, int(value["input_length"]), int(value["output_length"]), hashes)
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(
                f"{where}: timestamp, input_length, output_length and hash_ids are needed ({error!r})"
            ) from error
        if len(records) == num_samples:
            break
    rows = _enough(records, num_samples, path)
    blocks = _Blocks(words, max(1, round(_MOONCAKE_BLOCK * options.length_scale)), seed)
    shared = _shared_blocks(rows)
    return [
        _sample(row, blocks.prompt(row.hashes, _scaled(row.num_in, options)), count * blocks.size, options)
        for row, count in zip(rows, shared, strict=True)
    ]


class _Blocks:
    """Texts of blocks, each generated once: the same hash is the same text in every prompt."""

    def __init__(self, words: Words, size: int, seed: int) -> None:
        self._words = words
        self._seed = seed
        self._made: dict[int, MadeText] = {}
        self.size = size

    def prompt(self, hashes: tuple[int, ...], length: int) -> MadeText:
        whole = [self._block(block_hash) for block_hash in hashes[: length // self.size]]
        rest = length - len(whole) * self.size
        if rest or not whole:
            # Tokens that do not fill a block belong to this request alone, unless the hash says otherwise.
            whole.append(self._tail(hashes, len(whole), max(1, rest)))
        counts = [block.num_tokens for block in whole]
        known = [count for count in counts if count is not None]
        return MadeText("".join(block.text for block in whole), sum(known) if len(known) == len(counts) else None)

    def _block(self, block_hash: int) -> MadeText:
        if block_hash not in self._made:
            self._made[block_hash] = self._words.make(np.random.default_rng((self._seed, block_hash)), self.size)
        return self._made[block_hash]

    def _tail(self, hashes: tuple[int, ...], index: int, length: int) -> MadeText:
        last = hashes[index] if index < len(hashes) else len(hashes)
        return self._words.make(np.random.default_rng((self._seed, last, length)), length)


def _shared_blocks(rows: list[_Row]) -> list[int]:
    """Return how many first blocks of each request also begin an earlier one."""
    nodes: dict[tuple[int, int], int] = {}
    counts = []
    for row in rows:
        parent, count = -1, 0
        for block_hash in row.hashes:
            known = (parent, block_hash) in nodes
            parent = nodes.setdefault((parent, block_hash), len(nodes))
            count += known
        counts.append(count)
    return counts


def _sample(row: _Row, text: MadeText, num_shared: int, options: DatasetOptions) -> Sample:
    return Sample(
        prompt=text.text,
        num_prompt_tokens=text.num_tokens,
        num_output_tokens=_scaled(row.num_out, options),
        must_write_all=True,
        num_shared_tokens=num_shared,
        time=row.time,
    )


def _scaled(length: int, options: DatasetOptions) -> int:
    return max(1, round(length * options.length_scale))


def _enough(rows: list[_Row], num_samples: int, path: Path) -> list[_Row]:
    if len(rows) < num_samples:
        raise ConfigError(f"{path} has {len(rows)} requests: give --num-prompts {len(rows)} or fewer")
    return rows
