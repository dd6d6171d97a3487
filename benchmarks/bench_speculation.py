"""Guessing tokens, against none: perch on texts that are copied, on chats and on random ones; the cost of checking.

One engine guesses in every way and does not, by turns, for each few requests anew: whatever else the machine does
befalls all alike. Of several such runs through all requests the one in the middle counts.
"""

import argparse
import json
import random
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from chats import chat_prompts
from numpy.typing import NDArray
from workbench import show

from archerfish import LLM, SamplingParams
from archerfish.execution.local import LocalExecutor
from archerfish.speculation.controller import Speculator
from archerfish.speculation.draft import Draft
from archerfish.speculation.method import Way
from archerfish.speculation.proposer import Ask

BATCHES = (1, 4, 16, 64)
FIXED = {"suffix": (4, 8, 16, 32), "draft_model": (2, 4, 6)}
ESTIMATED = (1, 2, 3, 4, 6, 8)
NUM_REPEATS = 5
LONG_ANSWER = 400
"""Tokens: what the longest question leaves of the context. Spec-Bench itself allows 1,024."""
NUM_ANSWERS = 24
"""Of a run, at least: one by one, or as many at once as the batch has."""
LEAST_PIECES = 15
"""Of requests that are answered together, for each setting: where there are few of them, there are more rounds."""
MODEL_1B = Path(__file__).parent / "gpu" / "shapes" / "llama-3.2-1b.json"
CHECKED = (1, 2, 3, 4, 6, 8, 12, 16)

_NAMES = ("Tom", "Anna", "Ben", "Mia", "Sam", "Lily", "Max", "Sara")
_PLACES = ("park", "garden", "forest", "beach", "school", "farm")
_THINGS = ("red ball", "small boat", "blue kite", "old hat", "little dog", "yellow car")


def copied(rng: random.Random) -> str:
    """A text to be written again with a small change."""
    one, other, new = rng.sample(_NAMES, 3)
    thing, place = rng.choice(_THINGS), rng.choice(_PLACES)
    return (
        f"Write the text again with {new} instead of {other}.\n{one} had a {thing}. {one} took the {thing} to the "
        f"{place}. {other} saw the {thing} and smiled. They played until the sun went down. Then {one} went home and "
        f"put the {thing} under the bed. {other} came back to the {place} the next day and looked for the {thing}."
    )


def begun(rng: random.Random) -> str:
    return f"Once upon a time, {rng.choice(_NAMES)} found a {rng.choice(_THINGS)} in the {rng.choice(_PLACES)}."


def unrelated(rng: random.Random) -> list[int]:
    return [rng.randrange(10, 8000) for _ in range(48)]


class Workload(NamedTuple):
    prompts: Sequence[Any]
    params: SamplingParams
    is_chat: bool = True


def workloads(questions: str | None) -> dict[str, Workload]:
    rng = random.Random(0)
    chats = chat_prompts(questions)
    return {
        "copies": Workload([copied(rng) for _ in range(64)], SamplingParams(temperature=0.0, max_tokens=96)),
        "chats": Workload(chats, SamplingParams(temperature=0.0, max_tokens=96)),
        "chats, long": Workload(chats, SamplingParams(temperature=0.0, max_tokens=LONG_ANSWER)),
        "chats, sampled": Workload(chats, SamplingParams(temperature=0.8, seed=1, max_tokens=96)),
        "stories": Workload(
            [begun(rng) for _ in range(64)], SamplingParams(temperature=0.0, max_tokens=192, ignore_eos=True), False
        ),
        "random": Workload(
            [unrelated(rng) for _ in range(64)],
            SamplingParams(temperature=1.0, seed=1, max_tokens=48, ignore_eos=True),
            False,
        ),
    }


class Setting(NamedTuple):
    method: str
    fixed: int | None = None
    """So many guesses each time; without it, as many as pay."""

    @property
    def name(self) -> str:
        return self.method if self.fixed is None else f"{self.method}, {self.fixed}"


OFF = Setting("off")


class Ran(NamedTuple):
    times_as_fast: float
    """With guesses as without."""
    tokens_a_step: float
    """Of steps with guesses."""
    trust: float
    """How often a guess stood, if the one before it did."""


class Bench:
    """An engine that guesses in one way or another, or does not, as it is told."""

    def __init__(self, llm: LLM, works: dict[str, Workload], num_repeats: int) -> None:
        executor = llm.assembly.executor
        assert isinstance(executor, LocalExecutor) and executor.speculator is not None
        self._llm = llm
        self._works = works
        self._num_repeats = num_repeats
        self._executor = executor
        self._counts = llm.assembly.engine.counts
        self._first = executor.speculator
        """As it was at the start, when nothing was learned."""
        self._learned: dict[Setting, Speculator | None] = {OFF: None}
        """Who guesses with each setting, as if it were the only one."""

    @property
    def methods(self) -> list[str]:
        return [way.name for way in self._first.ways]

    def watched(self) -> Speculator:
        """One that takes on every setting, if it is told to, and off as well: what it learns, it learns of all."""
        return self._first.anew("off")

    def run(self, name: str, batch: int, settings: Sequence[Setting], watched: Speculator | None = None) -> list[Ran]:
        """Each setting learns for itself, unless somebody is watched who takes on all of them."""
        work = self._works[name]
        prompts = [work.prompts[number % len(work.prompts)] for number in range(max(NUM_ANSWERS, batch))]
        pieces = [prompts[first : first + batch] for first in range(0, len(prompts), batch)]
        turns: list[dict[Setting, float]] = []
        drafts = {setting: np.zeros(3) for setting in [OFF, *settings]}
        num_repeats = max(self._num_repeats, LEAST_PIECES // len(pieces))
        for turn in range(num_repeats + 1):
            seconds = dict.fromkeys([OFF, *settings], 0.0)
            for place, piece in enumerate(pieces):
                for setting in _turned([OFF, *settings], turn + place):
                    before = self._drafts(setting)
                    self._switch(setting, watched)
                    seconds[setting] += self._answer(piece, work)
                    drafts[setting] += self._drafts(setting) - before
            turns.append(seconds)
        found = []
        for setting in settings:
            # The first time it learns what pays.
            times_as_fast = statistics.median(seconds[OFF] / seconds[setting] for seconds in turns[1:])
            num_drafts, num_accepted_tokens, num_checked = drafts[setting]
            tokens_a_step, trust = (
                1 + num_accepted_tokens / max(1, num_drafts),
                num_accepted_tokens / max(1, num_checked),
            )
            found.append(Ran(times_as_fast, float(tokens_a_step), float(trust)))
        return found

    def _drafts(self, setting: Setting) -> NDArray[np.float64]:
        """So far: how many, guesses that stood, and guesses that were checked, as those are before which all stood."""
        num_drafts, accepted_per_position = self._counts.num_drafts, self._counts.accepted_per_position
        checked = accepted_per_position if setting.fixed is None else accepted_per_position[: setting.fixed - 1]
        return np.array([num_drafts, sum(accepted_per_position), num_drafts + sum(checked)], np.float64)

    def _switch(self, setting: Setting, watched: Speculator | None) -> None:
        if watched is not None:
            watched.method, watched.fixed = setting
        elif setting not in self._learned:
            self._learned[setting] = self._first.anew(*setting)
        self._executor.speculator = watched or self._learned[setting]
        self._llm.assembly.engine.scheduler.guessing = self._executor.guessing

    def _answer(self, prompts: Sequence[Any], work: Workload) -> float:
        """Seconds."""
        started = time.perf_counter()
        if work.is_chat:
            self._llm.chat([[{"role": "user", "content": text}] for text in prompts], work.params, progress=False)
        else:
            self._llm.generate(prompts, work.params, progress=False)
        return time.perf_counter() - started


class Wrong:
    """Guesses as many tokens as it may, none of which stands."""

    surest = None

    def start(self, row: int, tokens: Sequence[int], num_prompt_tokens: int, tenant: str) -> None: ...

    def extend(self, row: int, tokens: Sequence[int]) -> None: ...

    def hints(self, row: int) -> bool:
        return True

    def propose(self, asks: Sequence[Ask]) -> list[Draft]:
        return [Draft.chain([3] * ask.most) for ask in asks]

    def saw(self, row: int, draft: Draft, drawn: Sequence[int]) -> None: ...


def cost_of_checking(quantization: str) -> list[float]:
    """Of a step with so many tokens, against one with one: for a random model of real shape."""
    settings: dict[str, Any] = {"load_format": "dummy", "skip_tokenizer_init": True, "max_model_len": 512}
    settings |= {"quantization": quantization, "speculative_config": {"method": "suffix"}}
    with LLM(str(MODEL_1B), **settings) as llm:
        executor, counts = llm.assembly.executor, llm.assembly.engine.counts
        assert isinstance(executor, LocalExecutor) and executor.speculator is not None
        speculator = executor.speculator
        speculator.ways, speculator.method = [Way("wrong", Wrong(), most=max(CHECKED))], "wrong"

        def step_seconds(num_tokens: int) -> float:
            speculator.fixed = num_tokens - 1
            before = counts.busy_time, counts.num_steps
            llm.generate([[5] * 16], SamplingParams(temperature=0.0, max_tokens=16), progress=False)
            return (counts.busy_time - before[0]) / (counts.num_steps - before[1])

        seconds = [[step_seconds(count) for count in CHECKED] for _ in range(NUM_REPEATS)]
    return [min(times) / min(one[0] for one in seconds) for times in zip(*seconds, strict=True)]


class Report:
    """Tables on the way, and all figures in the end."""

    def __init__(self) -> None:
        self.found: dict[str, Any] = {}

    def table(self, title: str, columns: Sequence[object], rows: dict[str, Sequence[float]]) -> None:
        shown = [(name, *(f"{value:.2f}" for value in values)) for name, values in rows.items()]
        show(title, ("", *map(str, columns)), shown)
        self.found[title] = {name: dict(zip(map(str, columns), values, strict=True)) for name, values in rows.items()}


def measure(bench: Bench, names: Sequence[str], report: Report) -> None:
    chosen = [Setting(method) for method in ("auto", *bench.methods)]
    fixed = [Setting(method, count) for method, counts in FIXED.items() for count in counts]
    columns: dict[str, list[float]] = {}
    for name in names:
        # Long answers are the short ones and what follows: fixed numbers once are enough.
        settings = chosen if name == "chats, long" else [*chosen, *fixed]
        ran = [one.times_as_fast for one in bench.run(name, 1, settings)]
        columns[name] = ran
        rows = {setting.name: [one] for setting, one in zip(settings, ran, strict=True)}
        report.table(f"{name}, one at a time: times as fast as none", [""], rows)
    names = [name for name in names if name != "chats, long"]
    best = {name: max(1.0, *columns[name][len(chosen) :]) for name in names}
    share = [columns[name][0] / best[name] for name in names]
    report.table("auto as a part of the best fixed setting", names, {"": share})
    rows = {
        name: [columns[name][0], *(bench.run(name, batch, chosen[:1])[0].times_as_fast for batch in BATCHES[1:])]
        for name in names
    }
    report.table("auto, so many at once: times as fast as none", BATCHES, rows)


def estimate(bench: Bench, report: Report) -> None:
    """The classical estimate against what was measured, where answers are long and prompts are not."""
    watched = bench.watched()
    ran = bench.run("stories", 1, [Setting("draft_model", count) for count in ESTIMATED], watched)
    guessed = [
        watched.lengths.speed_up(one.trust, count, is_drafted=True) for one, count in zip(ran, ESTIMATED, strict=True)
    ]
    measured = [one.times_as_fast for one in ran]
    rows = {"measured": measured, "estimated": guessed, "tokens a step": [one.tokens_a_step for one in ran]}
    rows["estimated / measured"] = [one / other for one, other in zip(guessed, measured, strict=True)]
    report.table("draft_model on stories, one at a time, so many guesses", ESTIMATED, rows)


def _turned(settings: Sequence[Setting], number: int) -> Sequence[Setting]:
    """In another order each time."""
    first = number % len(settings)
    return [*settings[first:], *settings[:first]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output", nargs="?", help="JSON file for all figures")
    parser.add_argument("--questions", help="questions of Spec-Bench (question.jsonl), instead of some in their style")
    parser.add_argument("--only", nargs="*", default=[], help="workloads")
    parser.add_argument("--repeats", type=int, default=NUM_REPEATS, help="of which the one in the middle counts")
    given = parser.parse_args()
    report = Report()
    works = workloads(given.questions)
    # Without the prefix cache: every repeat has everything to do.
    with LLM(speculative_config={"method": "auto"}, enable_prefix_caching=False, max_num_seqs=64) as llm:
        bench = Bench(llm, works, given.repeats)
        estimate(bench, report)
        measure(bench, given.only or list(works), report)
    rows: dict[str, Sequence[float]] = {}
    for quantization in () if given.only else ("none", "int8"):
        rows[quantization] = cost_of_checking(quantization)
    if rows:
        report.table("a step of 1B with so many tokens, against one", CHECKED, rows)
    if given.output is not None:
        Path(given.output).write_text(json.dumps(report.found, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
