"""Speculation against none: perch on texts that are copied, on chats and on random ones; the cost of verification.

One engine runs every setting in turns, a few requests each: whatever else the machine does affects all alike. Of
several such runs through all requests the median counts.
"""

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from chats import chat_prompts
from numpy.typing import NDArray
from workbench import show

from archerfish import LLM, SamplingParams
from archerfish.execution.local import LocalExecutor
from archerfish.speculation.controller import SpeculationController
from archerfish.speculation.cost_model import SpeculationCostModel
from archerfish.speculation.draft import Draft
from archerfish.speculation.method import SpeculationMethod
from archerfish.speculation.proposer import DraftRequest

BATCHES = (1, 4, 16, 64)
FIXED = {"suffix": (4, 8, 16, 32), "draft_model": (2, 4, 6)}
ESTIMATED = (1, 2, 3, 4, 6, 8)
NUM_REPEATS = 5
LONG_ANSWER = 400
"""Tokens that the longest question leaves of the context. Spec-Bench itself allows 1,024."""
NUM_ANSWERS = 24
"""Answers of a run, at least: one by one, or as many concurrently as the batch has."""
MIN_BATCHES = 15
"""Batches of requests for each setting: where a run has few of them, there are more runs."""
MODEL_1B = Path(__file__).parent / "gpu" / "shapes" / "llama-3.2-1b.json"
VERIFIED = (1, 2, 3, 4, 6, 8, 12, 16)

_NAMES = ("Tom", "Anna", "Ben", "Mia", "Sam", "Lily", "Max", "Sara")
_LOCATIONS = ("park", "garden", "forest", "beach", "school", "farm")
_THINGS = ("red ball", "small boat", "blue kite", "old hat", "little dog", "yellow car")


def copied(rng: random.Random) -> str:
    """Return a request to write a text again with a small change."""
    hero, friend, new = rng.sample(_NAMES, 3)
    thing, location = rng.choice(_THINGS), rng.choice(_LOCATIONS)
    return (
        f"Write the text again with {new} instead of {friend}.\n{hero} had a {thing}. {hero} took the {thing} to the "
        f"{location}. {friend} saw the {thing} and smiled. They played until the sun went down. Then {hero} went home "
        f"and put the {thing} under the bed. {friend} came back to the {location} the next day and looked for "
        f"the {thing}."
    )


def begun(rng: random.Random) -> str:
    return f"Once upon a time, {rng.choice(_NAMES)} found a {rng.choice(_THINGS)} in the {rng.choice(_LOCATIONS)}."


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
    num_draft_tokens: int | None = None
    """A fixed draft length; None for the one that pays."""
    without: str | None = None
    """A part of the controller that is replaced by a neutral stand-in."""

    @property
    def name(self) -> str:
        if self.without is not None:
            return f"{self.method} without {self.without}"
        return self.method if self.num_draft_tokens is None else f"{self.method}, {self.num_draft_tokens}"


OFF = Setting("off")


def _without_budget(controller: SpeculationController) -> None:
    """Allow any time to be spent in vain."""
    budgeted: Any = controller
    budgeted._credit = lambda names, steps: None


def _without_backoff(controller: SpeculationController) -> None:
    """Propose for every sequence in every step."""

    class Eager(SpeculationMethod):
        __slots__ = ()

        def record_unverified(self, row: int, step: int) -> None: ...

    for method in controller.methods:
        object.__setattr__(method, "__class__", Eager)


def _without_acceptance(controller: SpeculationController) -> None:
    """Assume the same acceptance rate of every row."""

    class Unlearning(SpeculationMethod):
        __slots__ = ()

        def acceptance_rate(self, row: int) -> float:
            return self.initial_acceptance_rate

    for method in controller.methods:
        object.__setattr__(method, "__class__", Unlearning)


def _without_token_values(controller: SpeculationController) -> None:
    """Value every token alike, whatever other sequences have left to write."""
    sequences: Any = controller._sequences
    sequences.token_values = lambda plan, expected: dict.fromkeys(range(len(plan.chunks)), 1.0)


def _without_token_price(controller: SpeculationController) -> None:
    """Value a drafter's tokens as if no other method made them cheaper."""
    cost_model: Any = controller.cost_model
    cost_model.record_steps = lambda num_steps, worth, taken: None


def _without_margin(controller: SpeculationController) -> None:
    """Verify draft tokens that are estimated to save just what they cost."""
    cost_model: Any = controller.cost_model
    cost_model.margin = cost_model.drafter_margin = 1.0


def _without_forgetting(controller: SpeculationController) -> None:
    """Never measure again what was found too expensive."""
    cost_model: Any = controller.cost_model
    cost_model._record_choice = lambda count, step: None


PARTS: dict[str, Callable[[SpeculationController], None]] = {
    "nothing": lambda controller: None,
    "budget": _without_budget,
    "backoff": _without_backoff,
    "acceptance": _without_acceptance,
    "token-values": _without_token_values,
    "token-price": _without_token_price,
    "margin": _without_margin,
    "forgetting": _without_forgetting,
}
"""Parts of the controller, and what replaces them by neutral stand-ins. What is measured without nothing is noise."""


class Measurement(NamedTuple):
    speedup: float
    """Speed with speculation over speed without."""
    tokens_per_step: float
    """Tokens of steps with drafts."""
    acceptance_rate: float
    """How often a draft token was accepted, given that the one before it was."""


class Bench:
    """An engine whose speculation is switched between settings."""

    def __init__(self, llm: LLM, works: dict[str, Workload], num_repeats: int) -> None:
        executor = llm.assembly.executor
        assert isinstance(executor, LocalExecutor) and executor.speculation is not None
        self._llm = llm
        self._works = works
        self._num_repeats = num_repeats
        self._executor = executor
        self._counts = llm.assembly.engine.counts
        self._speculation = executor.speculation
        self._initial = executor.speculation.controller
        """The controller as it was at the start, before anything was learned."""
        self._controllers: dict[Setting, SpeculationController | None] = {OFF: None}
        """The controller of each setting, which learns as if it were the only one."""

    @property
    def methods(self) -> list[str]:
        return [method.name for method in self._initial.methods]

    def share_cost_model(self, settings: Sequence[Setting]) -> SpeculationCostModel:
        """Give settings, and off, controllers that all learn the same latencies, and return their cost model."""
        cost_model = deepcopy(self._initial.cost_model)
        for setting in (OFF, *settings):
            self._controllers[setting] = self._initial.fresh_copy(setting.method, setting.num_draft_tokens, cost_model)
        return cost_model

    def reset(self) -> None:
        """Forget all controllers."""
        self._controllers = {OFF: None}

    def run(self, name: str, batch: int, settings: Sequence[Setting]) -> list[Measurement]:
        """Measure settings on a workload, with so many requests at once."""
        work = self._works[name]
        prompts = [work.prompts[number % len(work.prompts)] for number in range(max(NUM_ANSWERS, batch))]
        batches = [prompts[first : first + batch] for first in range(0, len(prompts), batch)]
        runs: list[dict[Setting, float]] = []
        drafts = {setting: np.zeros(3) for setting in [OFF, *settings]}
        num_repeats = max(self._num_repeats, MIN_BATCHES // len(batches))
        for number in range(num_repeats + 1):
            seconds = dict.fromkeys([OFF, *settings], 0.0)
            for index, requests in enumerate(batches):
                for setting in _rotated([OFF, *settings], number + index):
                    before = self._drafts(setting)
                    self._switch(setting)
                    seconds[setting] += self._answer(requests, work)
                    drafts[setting] += self._drafts(setting) - before
            runs.append(seconds)
        measurements = []
        for setting in settings:
            # The first run is for learning what pays.
            speedup = statistics.median(seconds[OFF] / seconds[setting] for seconds in runs[1:])
            num_drafts, num_accepted, num_verified = drafts[setting]
            tokens_per_step = 1 + num_accepted / max(1, num_drafts)
            measurements.append(
                Measurement(speedup, float(tokens_per_step), float(num_accepted / max(1, num_verified)))
            )
        return measurements

    def _drafts(self, setting: Setting) -> NDArray[np.float64]:
        """Return totals: drafts, accepted tokens, and verified ones, whose predecessors were all accepted."""
        num_drafts, accepted = self._counts.num_drafts, self._counts.accepted_per_position
        verified = accepted if setting.num_draft_tokens is None else accepted[: setting.num_draft_tokens - 1]
        return np.array([num_drafts, sum(accepted), num_drafts + sum(verified)], np.float64)

    def _switch(self, setting: Setting) -> None:
        if setting not in self._controllers:
            controller = self._initial.fresh_copy(setting.method, setting.num_draft_tokens)
            if setting.without is not None:
                PARTS[setting.without](controller)
            self._controllers[setting] = controller
        switched = self._controllers[setting]
        self._executor.speculation = None if switched is None else self._speculation.with_controller(switched)

    def _answer(self, prompts: Sequence[Any], work: Workload) -> float:
        """Return the seconds that it takes to answer prompts."""
        started = time.perf_counter()
        if work.is_chat:
            self._llm.chat([[{"role": "user", "content": text}] for text in prompts], work.params, progress=False)
        else:
            self._llm.generate(prompts, work.params, progress=False)
        return time.perf_counter() - started


class WrongProposer:
    """Proposes as many tokens as it may, none of which is accepted."""

    def start(self, row: int, tokens: Sequence[int], num_prompt_tokens: int, tenant: str) -> None: ...

    def extend(self, row: int, tokens: Sequence[int]) -> None: ...

    def has_hint(self, row: int) -> bool:
        return True

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        return [Draft.chain([3] * request.max_tokens) for request in requests]

    def observe(self, row: int, draft: Draft, sampled: Sequence[int]) -> None: ...


def cost_of_verification(quantization: str) -> list[float]:
    """Return the latency of steps of several sizes over that of one token, for a random model of real shape."""
    settings: dict[str, Any] = {"load_format": "dummy", "skip_tokenizer_init": True, "max_model_len": 512}
    settings |= {"quantization": quantization, "speculative_config": {"method": "suffix"}}
    with LLM(str(MODEL_1B), **settings) as llm:
        executor, counts = llm.assembly.executor, llm.assembly.engine.counts
        assert isinstance(executor, LocalExecutor) and executor.speculation is not None
        speculation = executor.speculation
        methods = [SpeculationMethod("wrong", WrongProposer(), max_draft_tokens=max(VERIFIED))]

        def step_seconds(num_tokens: int) -> float:
            rows = executor.state.rows
            controller = SpeculationController(methods, "wrong", rows, time.perf_counter, num_tokens - 1)
            executor.speculation = speculation.with_controller(controller)
            before = counts.busy_time, counts.num_steps
            llm.generate([[5] * 16], SamplingParams(temperature=0.0, max_tokens=16), progress=False)
            return (counts.busy_time - before[0]) / (counts.num_steps - before[1])

        seconds = [[step_seconds(count) for count in VERIFIED] for _ in range(NUM_REPEATS)]
    return [min(column) / min(row[0] for row in seconds) for column in zip(*seconds, strict=True)]


class Report:
    """Tables on the way, and all figures in the end."""

    def __init__(self) -> None:
        self.figures: dict[str, Any] = {}

    def table(self, title: str, columns: Sequence[object], rows: dict[str, Sequence[float]]) -> None:
        shown = [(name, *(f"{value:.2f}" for value in values)) for name, values in rows.items()]
        show(title, ("", *map(str, columns)), shown)
        self.figures[title] = {name: dict(zip(map(str, columns), values, strict=True)) for name, values in rows.items()}


def measure(bench: Bench, names: Sequence[str], report: Report) -> None:
    """Measure all methods, with fixed lengths and with those that pay."""
    adaptive = [Setting(method) for method in ("auto", *bench.methods)]
    fixed = [Setting(method, count) for method, counts in FIXED.items() for count in counts]
    columns: dict[str, list[float]] = {}
    for name in names:
        # Long answers are the short ones and what follows: fixed lengths once are enough.
        settings = adaptive if name == "chats, long" else [*adaptive, *fixed]
        speedups = [measurement.speedup for measurement in bench.run(name, 1, settings)]
        columns[name] = speedups
        rows = {setting.name: [speedup] for setting, speedup in zip(settings, speedups, strict=True)}
        report.table(f"{name}, one at a time: speedup", [""], rows)
    names = [name for name in names if name != "chats, long"]
    best = {name: max(1.0, *columns[name][len(adaptive) :]) for name in names}
    share = [columns[name][0] / best[name] for name in names]
    report.table("auto as a share of the best fixed setting", names, {"": share})
    rows = {
        name: [columns[name][0], *(bench.run(name, batch, adaptive[:1])[0].speedup for batch in BATCHES[1:])]
        for name in names
    }
    report.table("auto, so many at once: speedup", BATCHES, rows)


def ablate(bench: Bench, names: Sequence[str], batches: Sequence[int], parts: Sequence[str], report: Report) -> None:
    """Measure auto without single parts of the controller."""
    settings = [Setting("auto"), *(Setting("auto", without=part) for part in parts)]
    for name in names:
        columns = [[measurement.speedup for measurement in bench.run(name, batch, settings)] for batch in batches]
        rows = {
            setting.name: list(values) for setting, values in zip(settings, zip(*columns, strict=True), strict=True)
        }
        report.table(f"{name}, so many at once: speedup", batches, rows)


def estimate(bench: Bench, report: Report) -> None:
    """Compare the classical estimate with what is measured, where answers are long and prompts are not."""
    settings = [Setting("draft_model", count) for count in ESTIMATED]
    cost_model = bench.share_cost_model(settings)
    measurements = bench.run("stories", 1, settings)
    bench.reset()
    estimated = [
        cost_model.speedup(measurement.acceptance_rate, count, is_drafted=True)
        for measurement, count in zip(measurements, ESTIMATED, strict=True)
    ]
    measured = [measurement.speedup for measurement in measurements]
    rows = {
        "measured": measured,
        "estimated": estimated,
        "tokens per step": [measurement.tokens_per_step for measurement in measurements],
        "estimated / measured": [own / other for own, other in zip(estimated, measured, strict=True)],
    }
    report.table("draft_model on stories, one at a time, by draft length", ESTIMATED, rows)


def _rotated(settings: Sequence[Setting], number: int) -> Sequence[Setting]:
    """Return the settings in another order for each number."""
    first = number % len(settings)
    return [*settings[first:], *settings[:first]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output", nargs="?", help="JSON file for all figures")
    parser.add_argument("--questions", help="questions of Spec-Bench (question.jsonl), instead of some in their style")
    parser.add_argument("--only", nargs="*", default=[], help="workloads")
    parser.add_argument("--repeats", type=int, default=NUM_REPEATS, help="runs of which the median counts")
    parser.add_argument("--batches", nargs="*", type=int, default=BATCHES, help="requests at once, for --without")
    parser.add_argument(
        "--without",
        nargs="*",
        choices=(*PARTS, "each"),
        help="measure auto without these parts of the controller, one at a time, and nothing else",
    )
    args = parser.parse_args()
    report = Report()
    works = workloads(args.questions)
    names = args.only or list(works)
    # Without the prefix cache: every run has everything to do.
    with LLM(speculative_config={"method": "auto"}, enable_prefix_caching=False, max_num_seqs=64) as llm:
        bench = Bench(llm, works, args.repeats)
        if args.without:
            ablate(bench, names, args.batches, list(PARTS) if "each" in args.without else args.without, report)
        else:
            estimate(bench, report)
            measure(bench, names, report)
    rows: dict[str, Sequence[float]] = {}
    for quantization in () if args.only or args.without else ("none", "int8"):
        rows[quantization] = cost_of_verification(quantization)
    if rows:
        report.table("latency of a step of 1B with so many tokens, over one", VERIFIED, rows)
    if args.output is not None:
        Path(args.output).write_text(json.dumps(report.figures, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
