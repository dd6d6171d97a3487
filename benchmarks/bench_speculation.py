"""Guessing tokens, against none: perch on texts that are copied, on chats and on random ones; the cost of checking.

One engine guesses and does not, by turns, for each few requests anew, and of each the best time counts: whatever else
the machine does befalls both, and only ever adds.
"""

import json
import random
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
        f"{place}. {other} saw the {thing} and smiled. They played until the sun went down. Then {one} went home and "
        f"put the {thing} under the bed. {other} came back to the {place} the next day and looked for the {thing}."
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


def answer(llm: LLM, prompts: Sequence[Any], params: SamplingParams) -> float:
    """Seconds."""
    started = time.perf_counter()
    if isinstance(prompts[0], str):
        llm.chat([[{"role": "user", "content": text}] for text in prompts], params, progress=False)
    else:
        llm.generate(prompts, params, progress=False)
    return time.perf_counter() - started


class Bench:
    """An engine that guesses, or does not, as it is told."""

    def __init__(self, llm: LLM) -> None:
        executor = llm.assembly.executor
        assert isinstance(executor, LocalExecutor) and executor.speculator is not None
        self._llm = llm
        self._executor = executor
        self._speculator = executor.speculator

    def switch(self, *, on: bool, fixed: int | None = None) -> None:
        self._speculator.fixed = fixed
        self._executor.speculator = self._speculator if on else None
        self._llm.assembly.engine.scheduler.guessing = self._executor.guessing

    def times_as_fast(self, name: str, batch: int, fixed: int | None = None) -> float:
        """With guesses as without."""
        make, params = WORKLOADS[name]
        rng = random.Random(0)
        prompts = [make(rng) for _ in range(max(NUM_ANSWERS, batch))]
        pieces = [prompts[first : first + batch] for first in range(0, len(prompts), batch)]
        best = {(on, place): float("inf") for on in (False, True) for place in range(len(pieces))}
        for turn in range(NUM_REPEATS + 1):
            for place, piece in enumerate(pieces):
                for on in (turn % 2 == 0, turn % 2 == 1):
                    self.switch(on=on, fixed=fixed)
                    seconds = answer(self._llm, piece, params)
                    if turn:  # The first time it learns what pays.
                        best[on, place] = min(best[on, place], seconds)
        without, with_guesses = (
            sum(seconds for (on, _), seconds in best.items() if on is kind) for kind in (False, True)
        )
        return without / with_guesses


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
    found: dict[str, float | list[float]] = {}
    # Without the prefix cache: every repeat has everything to do.
    with LLM(speculative_config={"method": "reference"}, enable_prefix_caching=False, max_num_seqs=64) as llm:
        bench = Bench(llm)
        rows = []
        for name in WORKLOADS:
            ratios = [bench.times_as_fast(name, batch) for batch in BATCHES]
            found |= {f"as many as pay, {name}, {batch}": ratio for batch, ratio in zip(BATCHES, ratios, strict=True)}
            rows.append((name, *(f"{ratio:.2f}" for ratio in ratios)))
        show("as many guesses as pay, times as fast as none", ("so many at once", *map(str, BATCHES)), rows)
        rows = []
        for name in WORKLOADS:
            ratios = [bench.times_as_fast(name, 1, count) for count in FIXED]
            found |= {f"{count} guesses, {name}": ratio for count, ratio in zip(FIXED, ratios, strict=True)}
            rows.append((name, *(f"{ratio:.2f}" for ratio in ratios)))
        show("one at a time with so many guesses, times as fast as none", ("", *map(str, FIXED)), rows)
    rows = []
    for quantization in ("none", "int8"):
        costs = found[f"checking, 1B {quantization}"] = cost_of_checking(quantization)
        rows.append((quantization, *(f"{cost:.2f}" for cost in costs)))
    show("a step of 1B with so many tokens, against one", ("weights", *map(str, CHECKED)), rows)
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
