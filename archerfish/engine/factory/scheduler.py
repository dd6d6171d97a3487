"""Builds the scheduler from resolved settings."""

from archerfish.config.resolve import ResolvedConfig
from archerfish.execution.memory import CacheSize
from archerfish.kvcache.layout import KVLayout
from archerfish.kvcache.tables import KVTables
from archerfish.scheduling.policy import batching_policy
from archerfish.scheduling.scheduler import Limits, Scheduler


def build_scheduler(
    config: ResolvedConfig,
    layout: KVLayout,
    size: CacheSize,
    eos_token_ids: tuple[int, ...],
    max_draft_tokens: int | None,
) -> Scheduler:
    """Build a scheduler over a cache of this size. `max_draft_tokens` holds for its first step."""
    limits = Limits(
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_model_len=config.max_model_len,
        eos_token_ids=eos_token_ids,
        max_drawn=config.max_drawn,
    )
    tables = KVTables(
        size.num_blocks,
        config.block_size,
        layout.windows,
        step_tokens=config.max_num_batched_tokens,
        prefix_caching=config.enable_prefix_caching,
    )
    policy = batching_policy(config.batching, config.max_num_seqs, config.batch_window_ms / 1000)
    return Scheduler(limits, tables, policy, config.seed, max_draft_tokens=max_draft_tokens)
