"""What the scheduler costs: plan + commit for a full house of decoding sequences, on one core, without a model."""

import statistics
import time

from workbench import show

from archerfish.execution.scripted import ScriptedExecutor
from archerfish.kvcache.tables import KVTables
from archerfish.request import Request, SamplingParams
from archerfish.scheduling.policy import ContinuousBatching
from archerfish.scheduling.scheduler import Limits, Scheduler

PROMPT_LENGTH = 512
NUM_STEPS = 300


def measure(num_sequences: int, windows: tuple[int | None, ...]) -> list[float]:
    """Seconds of plan + commit for each of many decode steps."""
    limits = Limits(max_num_seqs=num_sequences, max_num_batched_tokens=8192, max_model_len=4096)
    num_blocks = num_sequences * len(windows) * (PROMPT_LENGTH + 2 * NUM_STEPS) // 16
    tables = KVTables(num_blocks, 16, windows, step_tokens=8192, prefix_caching=True)
    scheduler = Scheduler(limits, tables, ContinuousBatching())
    executor = ScriptedExecutor()
    params = SamplingParams(temperature=0.0, max_tokens=3000)
    for index in range(num_sequences):
        # Staggered lengths: as in real traffic, a sixteenth of the sequences opens a block in any step.
        prompt = tuple((index * 7919 + i) % 997 for i in range(PROMPT_LENGTH - index % 16))
        scheduler.add(Request(request_id=str(index), prompt_token_ids=prompt, params=params, arrival_time=float(index)))
    seconds = []
    while len(seconds) < NUM_STEPS:
        started = time.perf_counter()
        plan = scheduler.plan(0.0)
        planned = time.perf_counter()
        result = executor.run(plan)
        resumed = time.perf_counter()
        scheduler.commit(plan, result)
        if not plan.starts and len(plan.chunks) == plan.num_tokens == num_sequences:
            seconds.append(planned - started + time.perf_counter() - resumed)
    return seconds


def main() -> None:
    rows = []
    for num_sequences in (16, 64, 256):
        for windows in ((None,), (None, 1024)):
            seconds = sorted(measure(num_sequences, windows))
            median = statistics.median(seconds)
            p99 = seconds[int(len(seconds) * 0.99)]
            figures = (f"{value * 1e3:.3f}" for value in (median, seconds[0], p99))
            rows.append((str(num_sequences), str(len(windows)), *figures, f"{median / num_sequences * 1e6:.2f}"))
    columns = ("running", "KV groups", "median ms", "best ms", "p99 ms", "us a sequence")
    show(f"plan + commit, decode steps over {PROMPT_LENGTH}-token prompts", columns, rows)


if __name__ == "__main__":
    main()
