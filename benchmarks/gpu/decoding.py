"""Decode steps without prompts before them: what a step takes depends on the length of contexts, not on the words."""

import time
from collections import deque
from itertools import count

from archerfish.engine.build import Assembly
from archerfish.request import SamplingParams
from archerfish.scheduling.plan import Chunk, Plan, SequenceStart


def decode_seconds(assembly: Assembly, batch: int, context: int, *, steps: int, params: SamplingParams) -> float:
    """Of one step with so many sequences of so many tokens, steps launched ahead as the engine does."""
    executor, block_size = assembly.executor, assembly.config.block_size
    blocks_each = -(-(context + 2 * steps + 16) // block_size)
    assert batch * blocks_each <= assembly.cache_size.num_blocks, "the cache is too small for so many tokens"
    free = count()
    starts = [
        SequenceStart(
            row=row,
            tokens=tuple(5 + (row + 7 * place) % 1000 for place in range(context)),
            num_prompt_tokens=context,
            blocks=(tuple(next(free) for _ in range(blocks_each)),),  # Of models whose layers all reach as far.
            params=params,
            seed=row,
            stop_token_ids=(),
        )
        for row in range(batch)
    ]

    def plan(step: int) -> Plan:
        chunks = [Chunk(row, context - 1 + step, 1, True) for row in range(batch)]
        return Plan(step, starts if step == 0 else [], [], chunks)

    flights: deque = deque()
    started = 0.0
    for step in range(steps + 8):
        if step == 8:
            while flights:
                flights.popleft().result()
            started = time.perf_counter()
        flights.append(executor.launch(plan(step)))
        if len(flights) == executor.max_in_flight:
            flights.popleft().result()
    while flights:
        flights.popleft().result()
    return (time.perf_counter() - started) / steps
