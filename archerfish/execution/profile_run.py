"""Profile runs: the steps that are run at the start, and the peak memory of the largest."""

from collections.abc import Callable, Sequence
from itertools import count
from typing import NamedTuple, Protocol

import torch

from archerfish.config.resolve import ResolvedConfig
from archerfish.kvcache.pool import BlockId
from archerfish.request import SamplingParams
from archerfish.scheduling.plan import Chunk, Plan, SequenceStart

_PROMPTS = (16, 32, 64)
"""Tokens of prompts whose GEMMs have kernels of their own; those of longer prompts are in the largest step."""


class MemoryReading(NamedTuple):
    """Bytes of a device in use at one time."""

    allocated: int
    """Bytes of tensors."""
    peak: int
    """Peak bytes of tensors since the last reset."""
    outside: int
    """Bytes of everything else: code, libraries, other processes."""


class MemoryReader(Protocol):
    """Reads the memory of a device."""

    def read(self) -> MemoryReading: ...

    def reset_peak(self) -> None:
        """Begin to measure the peak."""


class CudaMemory:
    """Reads the memory of the current GPU."""

    def read(self) -> MemoryReading:
        torch.cuda.synchronize()
        free, total = torch.cuda.mem_get_info()
        return MemoryReading(
            allocated=torch.cuda.memory_allocated(),
            peak=torch.cuda.max_memory_allocated(),
            outside=total - free - torch.cuda.memory_reserved(),
        )

    def reset_peak(self) -> None:
        torch.cuda.reset_peak_memory_stats()


def measure_peak(run: Callable[[], None], reader: MemoryReader) -> int:
    """Return the peak bytes that a call takes while it runs, in addition to those in use before."""
    reader.reset_peak()
    before = reader.read()
    run()
    after = reader.read()
    return after.peak - before.allocated + max(0, after.outside - before.outside)


class ProfileSteps(NamedTuple):
    """Steps of sequences that have just been started, and the blocks they write to."""

    plans: tuple[Plan, ...]
    largest: Plan
    num_blocks: int
    """Blocks that each of the plans fits in."""


def profile_steps(config: ResolvedConfig, num_groups: int, params: SamplingParams) -> ProfileSteps:
    """Return the steps that services usually begin with, prompts and decode, and the largest that settings allow."""
    sizes = [size for size in _PROMPTS if size <= min(config.max_model_len, config.max_num_batched_tokens)]
    plans = tuple(_plan([size], config, num_groups, params) for size in (1, *sizes))
    largest = _plan(_largest(config), config, num_groups, params)
    return ProfileSteps(plans, largest, max(_num_blocks(plan) for plan in (*plans, largest)))


def _largest(config: ResolvedConfig) -> list[int]:
    """Return lengths of chunks: as many tokens and sequences as a step may have, each chunk as long as possible."""
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
