"""Continuous against dynamic against static batching, on the same arrivals and the same model."""

import numpy as np
from workbench import Arrival, play, random_prompt, show, small_model

NUM_REQUESTS = 64
REQUESTS_PER_SECOND = 6.0
BATCH_SIZE = 8


def workload() -> list[Arrival]:
    """Poisson arrivals; answers vary in length by more than ten times, as real ones do."""
    rng = np.random.default_rng(0)
    times = np.cumsum(rng.exponential(1 / REQUESTS_PER_SECOND, NUM_REQUESTS))
    lengths = np.clip(rng.lognormal(3.4, 0.9, NUM_REQUESTS), 4, 200).astype(int)
    prompts = [random_prompt(rng, int(length)) for length in rng.integers(16, 200, NUM_REQUESTS)]
    return [Arrival(float(t), p, int(n)) for t, p, n in zip(times, prompts, lengths, strict=True)]


def main() -> None:
    arrivals = workload()
    num_tokens = sum(arrival.num_tokens for arrival in arrivals)
    rows = []
    for batching in ("static", "dynamic", "continuous"):
        with small_model(batching=batching, batch_window_ms=200, max_num_seqs=BATCH_SIZE) as llm:
            outputs, seconds = play(llm, arrivals)
            num_steps = llm.assembly.engine.counts.num_steps
        ttft = [output.metrics.ttft or 0.0 for output in outputs]
        total = [output.metrics.total or 0.0 for output in outputs]
        per_token = [t / len(output.outputs[0].token_ids) for t, output in zip(total, outputs, strict=True)]
        rows.append(
            (
                batching,
                f"{seconds:.1f}",
                f"{num_tokens / seconds:.0f}",
                f"{num_tokens / num_steps:.1f}",
                f"{np.median(ttft):.2f}",
                f"{np.quantile(ttft, 0.99):.2f}",
                f"{np.median(total):.2f}",
                f"{np.median(per_token) * 1e3:.0f}",
            )
        )
    columns = (
        "batching",
        "seconds",
        "tokens/s",
        "tokens/step",
        "TTFT p50 s",
        "TTFT p99 s",
        "total p50 s",
        "ms/token p50",
    )
    show(f"{NUM_REQUESTS} requests, {REQUESTS_PER_SECOND:g}/s, batches of {BATCH_SIZE}", columns, rows)


if __name__ == "__main__":
    main()
