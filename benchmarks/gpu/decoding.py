"""Measures decode steps without prefill: a step's time depends on the length of contexts, not on their tokens."""

import time
from collections import deque
from itertools import count

from archerfish.engine.build import Assembly
from archerfish.request import SamplingParams
from archerfish.scheduling.plan import Chunk, Plan, SequenceStart


def decode_seconds(assembly: Assembly, batch: int, context: int, *, steps: int, params: SamplingParams) -> float:
    """Return the seconds of one step with `batch` sequences of `context` tokens; steps are in flight as in the
    engine."""
    executor, block_size = assembly.executor, assembly.config.block_size
    blocks_each = -(-(context + 2 * steps + 16) // block_size)
    assert batch * blocks_each <= assembly.cache_size.num_blocks, "the cache is too small for so many tokens"
    free = count()
    starts = [
        SequenceStart(
            row=row,
            tokens=tuple(5 + (row + 7 * position) % 1000 for position in range(context)),
            num_prompt_tokens=context,
            blocks=(tuple(next(free) for _ in range(blocks_each)),),  # All layers have one window.
            params=params,
            seed=row,
            stop_token_ids=(),
        )
        for row in range(batch)
    ]

    def plan(step: int) -> Plan:
        chunks = [Chunk(row, context - 1 + step, 1, True) for row in range(batch)]
        return Plan(step, starts if step == 0 else [], [], chunks)

    in_flight: deque = deque()
    started = 0.0
    for step in range(steps + 8):
        if step == 8:
            while in_flight:
                in_flight.popleft().result()
            started = time.perf_counter()
        in_flight.append(executor.launch(plan(step)))
        if len(in_flight) == executor.max_in_flight:
            in_flight.popleft().result()
    while in_flight:
        in_flight.popleft().result()
    return (time.perf_counter() - started) / steps
