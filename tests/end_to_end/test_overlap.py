"""A model whose executor is always given the next step before it tells of the last one: the answers are the same."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice

import pytest
import torch

from archerfish import LLM, SamplingParams
from archerfish.execution.executor import Executor, LaunchedStep
from archerfish.request import Structured
from archerfish.scheduling.plan import Plan, StepResult
from tests.checkpoints import write_checkpoint

OFF = {"method": "off"}
"""Where tokens are guessed, no step is planned before the last one is known."""
TEXTS = ["The quick brown fox", "jumps over the lazy dog. " * 3, "and"]
PARAMS = {
    "greedy": SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True),
    "seeded, several": SamplingParams(seed=3, n=3, max_tokens=9, ignore_eos=True),
    "penalties and probabilities": SamplingParams(
        seed=4, max_tokens=8, presence_penalty=1.0, repetition_penalty=1.2, logprobs=2, prompt_logprobs=1
    ),
    "bad words": SamplingParams(
        seed=7, max_tokens=20, ignore_eos=True, bad_words_token_ids=[[one, two] for one in range(20) for two in (4, 5)]
    ),
    "a form": SamplingParams(seed=5, max_tokens=12, structured=Structured(regex="[a-f]{4,9}")),
    "any end": SamplingParams(seed=6, max_tokens=20, stop=("e", "a"), stop_token_ids=tuple(range(0, 300, 17))),
}


@dataclass
class LateStep:
    """Computed at once, and told of when it is the oldest."""

    executor: "LateExecutor"
    inner: LaunchedStep

    def result(self) -> StepResult:
        assert self.executor.in_flight.popleft() is self
        return self.inner.result()


@dataclass
class LateExecutor:
    inner: Executor
    max_in_flight: int
    in_flight: deque[LateStep] = field(default_factory=deque)
    most_in_flight: int = 0
    max_draft_tokens: None = None

    def launch(self, plan: Plan) -> LateStep:
        step = LateStep(self, self.inner.launch(plan))
        self.in_flight.append(step)
        self.most_in_flight = max(self.most_in_flight, len(self.in_flight))
        return step

    def close(self) -> None:
        self.inner.close()


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    torch.set_num_threads(1)
    directory = write_checkpoint(tmp_path_factory.mktemp("model") / "tiny")
    with LLM(str(directory), threads=1, max_num_seqs=4, check_invariants=True, speculative_config=OFF) as llm:
        yield llm


@pytest.fixture(params=[2, 3])
def late(llm: LLM, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> LateExecutor:
    executor = LateExecutor(llm.assembly.executor, request.param)
    monkeypatch.setattr(llm.assembly.engine, "_executor", executor)
    return executor


def written(llm: LLM, params: SamplingParams) -> list[object]:
    outputs = llm.generate(TEXTS, params, progress=False)
    return [(output.prompt_logprobs, output.outputs) for output in outputs]


@pytest.fixture(scope="module")
def expected(llm: LLM) -> dict[str, list[object]]:
    assert llm.assembly.executor.max_in_flight == 1
    return {name: written(llm, params) for name, params in PARAMS.items()}


@pytest.mark.parametrize("name", PARAMS)
def test_answers_are_the_same_when_steps_overlap(
    llm: LLM, name: str, expected: dict[str, list[object]], late: LateExecutor
) -> None:
    assert written(llm, PARAMS[name]) == expected[name]
    assert late.most_in_flight == (1 if name == "a form" else late.max_in_flight)
    assert_idle(llm, late)


def test_embeddings_are_the_same_when_steps_overlap(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = [one.outputs for one in llm.embed(TEXTS, progress=False)]
    monkeypatch.setattr(llm.assembly.engine, "_executor", LateExecutor(llm.assembly.executor, 2))
    assert [one.outputs for one in llm.embed(TEXTS, progress=False)] == alone


def test_a_stream_that_is_left_leaves_nothing_in_flight(llm: LLM, late: LateExecutor) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=30, ignore_eos=True)
    pieces = llm.stream(TEXTS[0], params)
    assert len(list(islice(pieces, 3))) == 3
    assert late.in_flight
    pieces.close()  # type: ignore[attr-defined]
    assert_idle(llm, late)


def assert_idle(llm: LLM, late: LateExecutor) -> None:
    assert not late.in_flight and not llm.assembly.engine.has_work
    assert llm.assembly.engine.scheduler.tables.pool.num_in_use == 0
