"""The prefix cache on and off: many questions behind one long system prompt, and unrelated prompts for comparison."""

import numpy as np
from workbench import random_prompt, show, small_model

from archerfish import SamplingParams

SHARED_LENGTH = 768
QUESTION_LENGTH = 32
NUM_REQUESTS = 32
PARAMS = SamplingParams(temperature=0.0, max_tokens=16, ignore_eos=True)


def workload(*, shared: bool) -> list[list[int]]:
    rng = np.random.default_rng(0)
    system = random_prompt(rng, SHARED_LENGTH)
    beginnings = [system if shared else random_prompt(rng, SHARED_LENGTH) for _ in range(NUM_REQUESTS)]
    return [beginning + random_prompt(rng, QUESTION_LENGTH) for beginning in beginnings]


def main() -> None:
    rows = []
    for shared in (True, False):
        prompts = workload(shared=shared)
        for enabled in (False, True):
            with small_model(enable_prefix_caching=enabled) as llm:
                engine = llm.assembly.engine
                started, computed = engine.clock(), engine.counts.num_computed_tokens
                outputs = llm.generate(prompts, PARAMS, progress=False)
                seconds = engine.clock() - started
                computed = engine.counts.num_computed_tokens - computed
            cached = sum(output.num_cached_tokens for output in outputs)
            rows.append(
                (
                    "one system prompt" if shared else "unrelated prompts",
                    "on" if enabled else "off",
                    f"{seconds:.2f}",
                    f"{np.median([output.metrics.ttft or 0.0 for output in outputs]):.2f}",
                    f"{cached / sum(len(prompt) for prompt in prompts):.0%}",
                    f"{computed:,}",
                )
            )
    columns = ("workload", "prefix cache", "seconds", "TTFT p50 s", "cached", "computed tokens")
    show(f"{NUM_REQUESTS} prompts of {SHARED_LENGTH} + {QUESTION_LENGTH} tokens, 16 out", columns, rows)


if __name__ == "__main__":
    main()
