"""Steps that are tried before there are any: which ones, and what memory the largest takes. Knows no model."""

from collections.abc import Callable, Sequence
from itertools import count
from typing import NamedTuple, Protocol

import torch

from archerfish.config.resolve import ResolvedConfig
from archerfish.kvcache.pool import BlockId
from archerfish.request import SamplingParams
from archerfish.scheduling.plan import Chunk, Plan, SequenceStart

_PROMPTS = (16, 32, 64)
"""Tokens of prompts whose products have kernels of their own; those of longer ones are in the largest step."""


class Reading(NamedTuple):
    """Bytes of a device at one time."""

    allocated: int
    """By tensors."""
    peak: int
    """Most that tensors had since it was last forgotten."""
    outside: int
    """By anything else: code, libraries, other processes."""


class MemoryReader(Protocol):
    def read(self) -> Reading: ...

    def forget_peak(self) -> None:
        """It is counted from here on."""


class CudaMemory:
    """Of the current GPU."""

    def read(self) -> Reading:
        torch.cuda.synchronize()
        free, total = torch.cuda.mem_get_info()
        return Reading(
            allocated=torch.cuda.memory_allocated(),
            peak=torch.cuda.max_memory_allocated(),
            outside=total - free - torch.cuda.memory_reserved(),
        )

    def forget_peak(self) -> None:
        torch.cuda.reset_peak_memory_stats()


def measure_peak(run: Callable[[], None], reader: MemoryReader) -> int:
    """Bytes that something takes at most while it runs, beside what was there before."""
    reader.forget_peak()
    before = reader.read()
    run()
    after = reader.read()
    return after.peak - before.allocated + max(0, after.outside - before.outside)


class Rehearsed(NamedTuple):
    """Steps, each of sequences that have just been started, and the blocks they write to."""

    plans: tuple[Plan, ...]
    largest: Plan
    num_blocks: int
    """Of either the plans or the largest one."""


def rehearsed_steps(config: ResolvedConfig, num_groups: int, params: SamplingParams) -> Rehearsed:
    """What most services begin with: a prompt and its first tokens; and the largest step that the settings allow."""
    sizes = [size for size in _PROMPTS if size <= min(config.max_model_len, config.max_num_batched_tokens)]
    plans = tuple(_plan([size], config, num_groups, params) for size in (1, *sizes))
    largest = _plan(_largest(config), config, num_groups, params)
    return Rehearsed(plans, largest, max(_num_blocks(plan) for plan in (*plans, largest)))


def _largest(config: ResolvedConfig) -> list[int]:
    """Lengths of chunks: as many tokens and as many sequences as a step may have, in as long pieces as possible."""
    lengths: list[int] = []
    left = config.max_num_batched_tokens
    for others in reversed(range(config.max_num_seqs)):
        lengths.append(min(config.max_model_len, left - others))
        left -= lengths[-1]
    return lengths


def _plan(lengths: Sequence[int], config: ResolvedConfig, num_groups: int, params: SamplingParams) -> Plan:
    free = map(BlockId, count())
    starts = []
    for row, length in enumerate(lengths):
        num_blocks = -(-length // config.block_size)
        starts.append(
            SequenceStart(
                row=row,
                tokens=(0,) * length,
                num_prompt_tokens=length,
                blocks=tuple(tuple(next(free) for _ in range(num_blocks)) for _ in range(num_groups)),
                params=params,
                seed=0,
                stop_token_ids=(),
            )
        )
    return Plan(0, starts, [], [Chunk(row, 0, length, True) for row, length in enumerate(lengths)])


def _num_blocks(plan: Plan) -> int:
    return sum(len(blocks) for start in plan.starts for blocks in start.blocks)
