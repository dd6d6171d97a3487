"""Reads off an engine what it reports of itself after each step."""

from archerfish.engine.engine import Engine
from archerfish.metrics.state import EngineState, record_step
from archerfish.scheduling.scheduler import Scheduler


def read_state(engine: Engine) -> EngineState:
    """Return the state of an engine between two steps. Changes nothing."""
    scheduler, counts = engine.scheduler, engine.counts
    limits, pool, prefixes = scheduler.limits, scheduler.tables.pool, scheduler.prefix_counts
    num_free, num_cached = pool.num_free, pool.num_cached
    return EngineState(
        time=engine.clock(),
        num_running=scheduler.num_running,
        num_waiting=scheduler.num_waiting,
        num_waiting_tokens=scheduler.num_waiting_tokens,
        max_num_seqs=limits.max_num_seqs,
        max_num_batched_tokens=limits.max_num_batched_tokens,
        num_blocks=pool.num_blocks,
        num_free_blocks=num_free,
        num_cached_blocks=num_cached,
        num_blocks_in_use=pool.num_blocks - num_free - num_cached,
        num_steps=counts.num_steps,
        num_computed_tokens=counts.num_computed_tokens,
        num_generated_tokens=counts.num_generated_tokens,
        num_preemptions=scheduler.num_preemptions,
        num_prefix_tokens_queried=prefixes.num_queried,
        num_prefix_tokens_hit=prefixes.num_hit,
        busy_time=counts.busy_time,
        num_drafts=counts.num_drafts,
        num_draft_tokens=counts.num_draft_tokens,
        num_accepted_tokens=counts.num_accepted_tokens,
        accepted_per_position=tuple(counts.accepted_per_position),
        drafting_time=counts.drafting_time,
        saved_seconds=counts.saved_seconds,
        lost_seconds=counts.lost_seconds,
        last_step=None if engine.last_step is None else record_step(engine.last_step, engine.cost),
    )


def block_map(scheduler: Scheduler) -> bytes:
    """Return one byte for each block of the KV cache: 0 free, 1 cached, 2 in use."""
    return scheduler.tables.pool.states()
