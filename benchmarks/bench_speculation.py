"""Guessing tokens, against none: perch on texts that are copied, on chats and on random ones; the cost of checking.

Two engines are open at once and take turns, so that whatever else the machine does befalls both.
"""

import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from workbench import show

from archerfish import LLM, SamplingParams
from archerfish.execution.local import LocalExecutor
from archerfish.speculation.draft import Draft
from archerfish.speculation.proposer import Ask

BATCHES = (1, 4, 16, 64)
FIXED = (1, 2, 3, 5, 8, 12, 16, 24, 32)
NUM_REPEATS = 5
NUM_ANSWERS = 24
"""Of a run, at least: one by one, or as many at once as the batch has."""
MODEL_1B = Path(__file__).parent / "gpu" / "shapes" / "llama-3.2-1b.json"
CHECKED = (1, 2, 3, 4, 6, 8, 12, 16)

_NAMES = ("Tom", "Anna", "Ben", "Mia", "Sam", "Lily", "Max", "Sara")
_PLACES = ("park", "garden", "forest", "beach", "school", "farm")
_THINGS = ("red ball", "small boat", "blue kite", "old hat", "little dog", "yellow car")
_QUESTIONS = (
    "Tell me a story about a {thing}.",
    "What can I do in a {place} with my friend {name}?",
    "Why does {name} like the {place}?",
    "Write two sentences about a {thing} in the {place}.",
    "Who is {name}, and where is the {thing}?",
)


def _words(rng: random.Random) -> dict[str, str]:
    return {"name": rng.choice(_NAMES), "place": rng.choice(_PLACES), "thing": rng.choice(_THINGS)}


def copied(rng: random.Random) -> str:
    """A text to be written again with a small change."""
    one, other, new = rng.sample(_NAMES, 3)
    words = _words(rng)
    thing, place = words["thing"], words["place"]
    return (
        f"Write the text again with {new} instead of {other}.\n{one} had a {thing}. {one} took the {thing} to the "
        f"{place}. {other} saw the {thing} and smiled. They played until the sun went down. Then {one} went home and put "
        f"the {thing} under the bed. {other} came back to the {place} the next day and looked for the {thing}."
    )


def chatted(rng: random.Random) -> str:
    return rng.choice(_QUESTIONS).format(**_words(rng))


def unrelated(rng: random.Random) -> list[int]:
    return [rng.randrange(10, 8000) for _ in range(48)]


WORKLOADS: dict[str, tuple[Callable[[random.Random], Any], SamplingParams]] = {
    "copies": (copied, SamplingParams(temperature=0.0, max_tokens=96)),
    "chats": (chatted, SamplingParams(temperature=0.8, seed=1, max_tokens=64)),
    "unrelated": (unrelated, SamplingParams(temperature=1.0, seed=1, max_tokens=48, ignore_eos=True)),
}


def rate(llm: LLM, prompts: Sequence[Any], params: SamplingParams, batch: int) -> float:
    """Tokens a second."""
    num_tokens, started = 0, time.perf_counter()
    for first in range(0, len(prompts), batch):
        some = prompts[first : first + batch]
        if isinstance(some[0], str):
            outputs = llm.chat([[{"role": "user", "content": text}] for text in some], params, progress=False)
        else:
            outputs = llm.generate(some, params, progress=False)
        num_tokens += sum(len(output.outputs[0].token_ids) for output in outputs)
    return num_tokens / (time.perf_counter() - started)


def opened(**speculation: Any) -> LLM:
    # Without the prefix cache: every repeat has everything to do.
    return LLM(speculative_config=speculation, enable_prefix_caching=False, max_num_seqs=64)


def compare(one: LLM, other: LLM, name: str, batch: int) -> list[float]:
    """How many times as fast the second is, in each of several turns."""
    make, params = WORKLOADS[name]
    rng = random.Random(0)
    prompts = [make(rng) for _ in range(max(NUM_ANSWERS, batch))]
    for llm in (one, other):
        rate(llm, prompts, params, batch)  # It learns what pays.
    return [1 / rate(one, prompts, params, batch) * rate(other, prompts, params, batch) for _ in range(NUM_REPEATS)]


class Wrong:
    """Guesses as many tokens as it may, none of which stands."""

    def start(self, row: int, tokens: Sequence[int], num_prompt_tokens: int, tenant: str) -> None: ...

    def extend(self, row: int, tokens: Sequence[int]) -> None: ...

    def propose(self, asks: Sequence[Ask]) -> list[Draft]:
        return [Draft.chain([3] * ask.most) for ask in asks]

    def saw(self, row: int, draft: Draft, drawn: Sequence[int]) -> None: ...


def cost_of_checking(quantization: str) -> list[float]:
    """Of a step with so many tokens, against one with one: for a random model of real shape."""
    settings: dict[str, Any] = {"load_format": "dummy", "skip_tokenizer_init": True, "max_model_len": 512}
    settings |= {"quantization": quantization, "speculative_config": {"method": "reference"}}
    with LLM(str(MODEL_1B), **settings) as llm:
        executor, counts = llm.assembly.executor, llm.assembly.engine.counts
        assert isinstance(executor, LocalExecutor) and executor.speculator is not None
        executor.speculator.proposer = Wrong()

        def step_seconds(num_tokens: int) -> float:
            executor.speculator.fixed = num_tokens - 1
            before = counts.busy_time, counts.num_steps
            llm.generate([[5] * 16], SamplingParams(temperature=0.0, max_tokens=16), progress=False)
            return (counts.busy_time - before[0]) / (counts.num_steps - before[1])

        seconds = [[step_seconds(count) for count in CHECKED] for _ in range(NUM_REPEATS)]
    return [min(times) / min(one[0] for one in seconds) for times in zip(*seconds, strict=True)]


def main() -> None:
    found: dict[str, Any] = {}
    with opened(method="off") as off, opened(method="auto") as auto:
        rows = []
        for name in WORKLOADS:
            for batch in BATCHES:
                ratios = compare(off, auto, name, batch)
                found[f"auto, {name}, {batch}"] = ratios
                rows.append((name, str(batch), f"{statistics.median(ratios):.2f}", f"{min(ratios):.2f}"))
        show("auto against off, times as fast", ("workload", "at once", "median", "worst"), rows)
        rows = []
        for name in WORKLOADS:
            told = [f"{statistics.median(found[f'auto, {name}, 1']):.2f}"]
            for count in FIXED:
                with opened(method="reference", num_speculative_tokens=count) as fixed:
                    ratios = found[f"{count} guesses, {name}"] = compare(off, fixed, name, 1)
                told.append(f"{statistics.median(ratios):.2f}")
            rows.append((name, *told))
        show("one at a time, times as fast as off", ("workload", "auto", *map(str, FIXED)), rows)
    rows = []
    for quantization in ("none", "int8"):
        costs = found[f"checking, 1B {quantization}"] = cost_of_checking(quantization)
        rows.append((quantization, *(f"{cost:.2f}" for cost in costs)))
    show("a step of 1B with so many tokens, against one", ("weights", *map(str, CHECKED)), rows)
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
