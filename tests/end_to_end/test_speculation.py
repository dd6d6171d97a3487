"""Guessing tokens changes how many steps an answer takes, and not a token or a bit of it."""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from re import fullmatch
from typing import Any

import pytest
import torch

from archerfish import LLM, RequestOutput, SamplingParams, Speculation
from archerfish.errors import ConfigError, InvalidParameter
from archerfish.execution.host_steps import PlainStep
from archerfish.execution.local import LocalExecutor
from archerfish.execution.step.inputs import StepBatch
from archerfish.request import Structured
from archerfish.speculation.controller import SpeculationController
from archerfish.speculation.draft import ROOT, Draft
from archerfish.speculation.method import SpeculationMethod
from archerfish.speculation.proposer import DraftRequest
from tests.checkpoints import CONFIG
from tests.end_to_end.heads import write_heads
from tests.lanes import full

STORY = "The fox ran into the forest. The hunter sat under an old oak tree. Then the rain came down on the hills."
PROMPTS = [
    f"Copy this text. {STORY}\nThe copy: The fox ran",
    "Once upon a time",
    "April is the fourth month of the year. " * 6,
    "one two three one two three one two",
    *(f"Story number {number}: there was a" for number in range(12)),
]
OFF = {"method": "off"}
PARAMS = {
    "greedy": SamplingParams(temperature=0.0, max_tokens=40, logprobs=2),
    "seeded": SamplingParams(temperature=0.8, seed=7, max_tokens=40, logprobs=1),
    "filtered": SamplingParams(temperature=0.9, top_k=20, top_p=0.8, min_p=0.02, seed=8, max_tokens=40),
    "several answers": SamplingParams(temperature=0.8, seed=9, n=3, max_tokens=20),
    "penalties": SamplingParams(
        temperature=0.0, repetition_penalty=1.3, presence_penalty=0.5, frequency_penalty=0.3, max_tokens=40
    ),
    "edits": SamplingParams(temperature=0.0, logit_bias={5: 4.0, 100: -8.0}, min_tokens=12, max_tokens=30),
    "bad words": SamplingParams(temperature=0.0, bad_words_token_ids=[[265], [546, 312], [18, 546]], max_tokens=40),
    "a form": SamplingParams(temperature=0.7, seed=3, max_tokens=40, structured=Structured(regex="(ab|cde|f g){3,12}")),
    "stop texts": SamplingParams(temperature=0.0, stop=("the", "ed "), max_tokens=40),
    "ends": SamplingParams(temperature=0.8, seed=2, stop_token_ids=tuple(range(0, 8000, 37)), max_tokens=40),
    "the prompt's own": SamplingParams(temperature=0.0, prompt_logprobs=1, max_tokens=12, logprobs=1),
}


class Oracle:
    """Knows most answers beforehand, and is wrong now and then: guesses of every length stand."""

    def __init__(self) -> None:
        self.answers: dict[tuple[int, ...], list[int]] = {}
        self._rows: dict[int, list[int]] = {}
        self.num_seen = 0

    def learn(self, outputs: Sequence[RequestOutput]) -> None:
        for output in outputs:
            self.answers[tuple(output.prompt_token_ids)] = output.outputs[0].token_ids

    def start(self, row: int, tokens: Sequence[int], num_prompt_tokens: int, tenant: str) -> None:
        self._rows[row] = [num_prompt_tokens, *tokens]

    def extend(self, row: int, tokens: Sequence[int]) -> None:
        self._rows[row] += tokens

    def has_hint(self, row: int) -> bool:
        return True

    def propose(self, asks: Sequence[DraftRequest]) -> list[Draft]:
        return [self._guess(ask) for ask in asks]

    def _guess(self, ask: DraftRequest) -> Draft:
        num_prompt, *tokens = self._rows[ask.row]
        answer = self.answers.get(tuple(tokens[:num_prompt]), [])
        place = len(tokens) - num_prompt
        guesses = [token + (at % 5 == 3) for at, token in enumerate(answer[place : place + ask.max_tokens], place)]
        return Draft.chain(guesses or [7] * ask.max_tokens)

    def observe(self, row: int, draft: Draft, drawn: Sequence[int]) -> None:
        assert len(drawn) == 1 + len(draft)
        self.num_seen += 1


class Doubter(Oracle):
    """Has a wrong guess beside every right one, and names it first: what stands, stands aside."""

    def _guess(self, ask: DraftRequest) -> Draft:
        line = super()._guess(ask._replace(max_tokens=max(1, ask.max_tokens // 2))).tokens
        tokens = [token for right in line for token in (right + 1, right)]
        parents = [ROOT if place < 2 else place - 1 - place % 2 for place in range(len(tokens))]
        return Draft(tuple(tokens), tuple(parents)).truncated(ask.max_tokens)


def drafted_by(llm: LLM, oracle: Oracle) -> LLM:
    executor = llm.assembly.executor
    assert isinstance(executor, LocalExecutor) and executor.speculation is not None
    controller = SpeculationController(
        [SpeculationMethod("oracle", oracle, max_draft_tokens=32)],
        "oracle",
        executor.state.rows,
        time.perf_counter,
        llm.assembly.config.speculation.num_speculative_tokens,
        executor.speculation.controller.cost_model,
    )
    executor.speculation = executor.speculation.with_controller(controller)
    return llm


def told(outputs: Sequence[RequestOutput]) -> list[object]:
    """Everything that a caller learns of answers, times aside."""
    return [(output.prompt_logprobs, [(one.token_ids, one.text, one.logprobs, one.finish_reason, one.stop_reason)
            for one in output.outputs]) for output in outputs]  # fmt: skip


@pytest.fixture
def free_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a step of any size take a millisecond, and everything else a microsecond.

    Then draft tokens pay wherever some are likely, on any machine: what the engine chooses by itself is to verify them.
    """
    microseconds, run = count(), PlainStep.forward

    def timed(step: PlainStep, batch: StepBatch) -> tuple[torch.Tensor, torch.Tensor]:
        for _ in range(1000):
            next(microseconds)
        return run(step, batch)

    monkeypatch.setattr(PlainStep, "forward", timed)
    monkeypatch.setattr(time, "perf_counter", lambda: next(microseconds) * 1e-6)


@pytest.fixture(scope="module")
def plain() -> Callable[[str], list[RequestOutput]]:
    """Answers without guesses."""
    torch.set_num_threads(1)
    with LLM(speculative_config=OFF) as llm:
        answers = {name: llm.generate(PROMPTS, params, progress=False) for name, params in PARAMS.items()}
    return answers.__getitem__


@pytest.mark.usefixtures("free_tokens")
@pytest.mark.parametrize(
    "config", [{}, {"method": "suffix"}, *full({"method": "suffix", "num_speculative_tokens": 6})], ids=str
)
def test_every_kind_of_request_has_its_answer(
    config: dict[str, Any], plain: Callable[[str], list[RequestOutput]]
) -> None:
    """Left to itself, too, which is the default: drafts are verified, and no token is another."""
    with LLM(speculative_config=config, check_invariants=True) as llm:
        for name, params in PARAMS.items():
            assert told(llm.generate(PROMPTS, params, progress=False)) == told(plain(name)), name
            alone = [llm.generate([prompt], params, progress=False)[0] for prompt in PROMPTS[:4]]
            assert told(alone) == told(plain(name)[:4]), name
        assert llm.assembly.engine.counts.num_accepted_tokens > 100


@pytest.mark.parametrize("length", [3, *full(1, 8, 31)])
def test_however_many_are_drafted_and_accepted(length: int, plain: Callable[[str], list[RequestOutput]]) -> None:
    oracle = Oracle()
    fixed = {"method": "suffix", "num_speculative_tokens": length}
    with drafted_by(LLM(speculative_config=fixed, check_invariants=True), oracle) as llm:
        for name in ("greedy", "seeded", "penalties", "a form", "several answers", "ends"):
            oracle.learn(plain(name))
            for some in (PROMPTS, PROMPTS[:2]):
                found = told(llm.generate(some, PARAMS[name], progress=False))
                assert found == told(plain(name)[: len(some)]), name
        counts = llm.assembly.engine.counts
        assert 0.1 < counts.num_accepted_tokens / counts.num_draft_tokens < 0.95, "guesses stand and fall"
        assert oracle.num_seen == counts.num_drafts


@pytest.mark.parametrize(
    "settings", [{}, {"kv_cache_dtype": "int8"}, *full({"kernels": "reference", "dtype": "float32"})], ids=str
)
def test_draft_tokens_may_be_siblings(settings: dict[str, Any]) -> None:
    """In plain torch bits depend on the number of tokens: with float32 that is far from any choice."""
    asked = [PARAMS[name] for name in ("greedy", "seeded", "penalties", "a form")]
    with LLM(speculative_config=OFF, **settings) as llm:
        plain = [llm.generate(PROMPTS[:5], params, progress=False) for params in asked]
    doubter = Doubter()
    fixed = {"method": "lookahead", "num_speculative_tokens": 10}
    with drafted_by(LLM(speculative_config=fixed, check_invariants=True, **settings), doubter) as llm:
        for params, expected in zip(asked, plain, strict=True):
            doubter.learn(expected)
            found = llm.generate(PROMPTS[:5], params, progress=False)
            if settings.get("kernels") == "reference":
                assert [one.outputs[0].token_ids for one in found] == [one.outputs[0].token_ids for one in expected]
            else:
                assert told(found) == told(expected)
        assert llm.assembly.engine.counts.num_accepted_tokens > 100


@pytest.mark.usefixtures("free_tokens")
@pytest.mark.parametrize("more", [{}, {"num_speculative_tokens": 12}, *full({"num_speculative_tokens": 55})], ids=str)
def test_a_model_that_looks_ahead_writes_the_same(
    more: dict[str, Any], plain: Callable[[str], list[RequestOutput]]
) -> None:
    with LLM(speculative_config={"method": "lookahead", **more}, check_invariants=True) as llm:
        for name in ("greedy", "seeded", "a form", "ends"):
            assert told(llm.generate(PROMPTS[:6], PARAMS[name], progress=False)) == told(plain(name)[:6]), name
        assert llm.assembly.engine.counts.num_draft_tokens > 40


@pytest.mark.parametrize("rule", ["rejection", "typical"])
def test_by_any_rule_the_likeliest_tokens_are_what_they_are(
    rule: str, plain: Callable[[str], list[RequestOutput]]
) -> None:
    """With temperature 0 every rule leaves a single token at each place."""
    oracle = Oracle()
    fixed = {"method": "suffix", "num_speculative_tokens": 5, "verification": rule}
    with drafted_by(LLM(speculative_config=fixed, check_invariants=True), oracle) as llm:
        for name in ("greedy", "penalties", "edits", "stop texts", "the prompt's own"):
            oracle.learn(plain(name))
            assert told(llm.generate(PROMPTS, PARAMS[name], progress=False)) == told(plain(name)), name
        assert llm.assembly.engine.counts.num_accepted_tokens > 100


def test_answers_by_rejection_keep_to_their_form() -> None:
    fixed = {"method": "suffix", "num_speculative_tokens": 5}
    rejection = Speculation(verification="rejection")
    with LLM(speculative_config=fixed, check_invariants=True) as llm:
        params = [replace(PARAMS["a form"], seed=seed, max_tokens=200, speculation=rejection) for seed in range(8)]
        for output in llm.generate(PROMPTS[:8], params, progress=False):
            assert fullmatch("(ab|cde|f g){3,12}", output.outputs[0].text), output.outputs[0]
        assert llm.assembly.engine.counts.num_accepted_tokens > 0


def test_a_request_chooses_for_itself(plain: Callable[[str], list[RequestOutput]]) -> None:
    """Who says off gets no guess, who names a number at most so many, and the tokens of all are what they are."""
    oracle = Oracle()
    oracle.learn(plain("seeded"))
    fixed = {"method": "suffix", "num_speculative_tokens": 6}
    choices = [Speculation(method="off"), Speculation(num_speculative_tokens=2), None]
    params = [replace(PARAMS["seeded"], speculation=choices[place % 3]) for place in range(len(PROMPTS))]
    with drafted_by(LLM(speculative_config=fixed, check_invariants=True), oracle) as llm:
        outputs = llm.generate(PROMPTS, params, progress=False)
    assert told(outputs) == told(plain("seeded"))
    for place, output in enumerate(outputs):
        found = output.metrics
        assert bool(found.num_drafts) == (place % 3 > 0)
        if place % 3 == 1:
            assert found.num_draft_tokens <= 2 * found.num_drafts
    assert any(one.metrics.num_draft_tokens > 2 * one.metrics.num_drafts for one in outputs[2::3])


def test_a_method_that_is_not_there_is_refused_by_those_that_are() -> None:
    for config, known in ((OFF, "off, auto;"), ({"method": "suffix"}, "off, auto, suffix, lookahead;")):
        with LLM(speculative_config=config) as llm, pytest.raises(InvalidParameter, match=f"this engine has {known}"):
            llm.generate(["a"], SamplingParams(speculation=Speculation(method="eagle")), progress=False)


def test_what_is_lossy_says_so(caplog: pytest.LogCaptureFixture) -> None:
    for rule in ("coupled", "rejection", "typical"):
        caplog.clear()
        with LLM(speculative_config={"verification": rule}):
            assert (rule in caplog.text and "lossy" in caplog.text) == (rule == "typical")


@pytest.fixture(scope="module")
def networks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Every method with weights, as it is asked for."""
    directory = tmp_path_factory.mktemp("heads")
    write_heads(directory)
    heads = {method: {"method": method, "model": str(directory / method)} for method in ("eagle", "medusa")}
    return {"draft_model": {"method": "draft_model"}, **heads}


@pytest.mark.each_choice
@pytest.mark.usefixtures("free_tokens")
@pytest.mark.parametrize(
    "more", [{}, {"num_speculative_tokens": 3}, {"num_speculative_tokens": 2, "branches": 3}], ids=str
)
@pytest.mark.parametrize("method", ["draft_model", "eagle", "medusa"])
def test_whatever_drafter_is_used(
    method: str,
    more: dict[str, Any],
    networks: dict[str, dict[str, Any]],
    plain: Callable[[str], list[RequestOutput]],
) -> None:
    with LLM(speculative_config={**networks[method], **more}, check_invariants=True) as llm:
        for name in PARAMS:
            assert told(llm.generate(PROMPTS, PARAMS[name], progress=False)) == told(plain(name)), name
        # Once more: prompts come from the cache, and what the network read of them with it.
        for name in ("greedy", "seeded"):
            for prompt, expected in zip(PROMPTS[:3], plain(name), strict=False):
                assert told(llm.generate([prompt], PARAMS[name], progress=False)) == told([expected]), name
        counts = llm.assembly.engine.counts
        # Heads of random weights are hardly ever accepted: left to itself, the controller may stop before one is.
        if more or method == "draft_model":
            assert counts.num_accepted_tokens > (400 if method == "draft_model" else 0)


@pytest.mark.each_choice
@pytest.mark.parametrize("branches", [1, 2])
@pytest.mark.parametrize(("method", "share"), [("eagle", 0.5), ("medusa", 0.2)])
def test_heads_in_the_box_guess_well(
    method: str, share: float, branches: int, plain: Callable[[str], list[RequestOutput]]
) -> None:
    fixed = {"method": method, "num_speculative_tokens": 3, "branches": branches}
    with LLM(speculative_config=fixed, check_invariants=True) as llm:
        for name in ("greedy", "seeded"):
            assert told(llm.generate(PROMPTS[:4], PARAMS[name], progress=False)) == told(plain(name)[:4]), name
        counts = llm.assembly.engine.counts
        num_drafts, num_accepted_tokens = counts.num_drafts, counts.accepted_per_position[0]
        llm.generate(["Once upon a time"], SamplingParams(temperature=0.0, max_tokens=160), progress=False)
        first_guesses = (counts.accepted_per_position[0] - num_accepted_tokens) / (counts.num_drafts - num_drafts)
        assert first_guesses > share


@pytest.mark.parametrize("method", ["draft_model", "eagle", "medusa"])
def test_drafters_draft_for_preempted_sequences(
    method: str, networks: dict[str, dict[str, Any]], plain: Callable[[str], list[RequestOutput]]
) -> None:
    # What each keeps in a block differs; there are about thirty.
    num_bytes = {"draft_model": 2_000_000, "eagle": 2_850_000, "medusa": 1_850_000}[method]
    small = {"kv_cache_memory_bytes": num_bytes, "max_model_len": 256, "max_num_seqs": 16}
    fixed = {**networks[method], "num_speculative_tokens": 3}
    with LLM(speculative_config=fixed, check_invariants=True, **small) as llm:
        for name in ("greedy", "seeded"):
            assert told(llm.generate(PROMPTS, PARAMS[name], progress=False)) == told(plain(name))
        assert llm.assembly.engine.scheduler.num_preemptions > 0


@pytest.mark.parametrize("method", ["draft_model", "eagle", "medusa"])
def test_drafters_run_in_plain_torch(method: str, networks: dict[str, dict[str, Any]]) -> None:
    """In plain torch bits depend on the number of tokens: with float32 that is far from any choice."""
    settings: dict[str, Any] = {"kernels": "reference", "dtype": "float32", "threads": 1}
    with LLM(speculative_config=OFF, **settings) as llm:
        expected = llm.generate(PROMPTS[:2], PARAMS["edits"], progress=False)
    with LLM(speculative_config={**networks[method], "num_speculative_tokens": 2}, **settings) as llm:
        found = llm.generate(PROMPTS[:2], PARAMS["edits"], progress=False)
        assert [one.outputs[0].token_ids for one in found] == [one.outputs[0].token_ids for one in expected]
        assert llm.assembly.engine.counts.num_draft_tokens > 40


def test_a_drafter_may_be_quantized(plain: Callable[[str], list[RequestOutput]]) -> None:
    stood = {}
    for quantization in ("none", "int8", "int4"):
        asked = {"method": "draft_model", "quantization": quantization, "num_speculative_tokens": 4}
        with LLM(speculative_config=asked) as llm:
            assert told(llm.generate(PROMPTS, PARAMS["greedy"], progress=False)) == told(plain("greedy"))
            counts = llm.assembly.engine.counts
            stood[quantization] = counts.num_accepted_tokens / counts.num_draft_tokens
    assert stood["none"] > 0.25 and stood["int8"] > 0.8 * stood["none"] and stood["int4"] > 0.5 * stood["none"]
    assert len(set(stood.values())) == 3, "each is another model"


def test_a_request_chooses_its_method(plain: Callable[[str], list[RequestOutput]]) -> None:
    with LLM(speculative_config={"method": "draft_model", "num_speculative_tokens": 3}) as llm:
        executor, counts = llm.assembly.executor, llm.assembly.engine.counts
        assert isinstance(executor, LocalExecutor) and executor.speculation is not None
        asked = {}
        for method in executor.speculation.controller.methods:
            asked[method.name] = method.proposer.propose
        used: list[str] = []

        def spying(name: str) -> Callable[[Sequence[DraftRequest]], list[Draft]]:
            return lambda asks: used.append(name) or asked[name](asks)  # type: ignore[func-returns-value]

        for method in executor.speculation.controller.methods:
            method.proposer.propose = spying(method.name)  # type: ignore[method-assign]
        for method in ("draft_model", "suffix", "lookahead", None):
            used.clear()
            params = replace(PARAMS["greedy"], speculation=Speculation(method=method))
            assert told(llm.generate(PROMPTS[:4], params, progress=False)) == told(plain("greedy")[:4])
            assert set(used) == {method or "draft_model"}
        used.clear()
        before = counts.num_draft_tokens
        params = replace(PARAMS["greedy"], speculation=Speculation(method="off"))
        assert told(llm.generate(PROMPTS[:4], params, progress=False)) == told(plain("greedy")[:4])
        assert not used and counts.num_draft_tokens == before
        # Both at once, each in its own way.
        mixed = [replace(PARAMS["greedy"], speculation=Speculation(method=one)) for one in ("suffix", "draft_model")]
        assert told(llm.generate(PROMPTS[:2], mixed, progress=False)) == told(plain("greedy")[:2])
        assert set(used) == {"suffix", "draft_model"}


def test_a_draft_model_of_another_vocabulary_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(ConfigError, match="a draft model must have the same vocabulary"):
        LLM(speculative_config={"method": "draft_model", "model": str(tmp_path)})


def test_a_method_without_weights_names_what_makes_them() -> None:
    with pytest.raises(ConfigError, match="archerfish train-draft --method draft_model"):
        LLM("minnow", speculative_config={"method": "draft_model"})


def test_who_is_thrown_out_goes_on_with_the_same_tokens(plain: Callable[[str], list[RequestOutput]]) -> None:
    oracle = Oracle()
    fixed = {"method": "suffix", "num_speculative_tokens": 4}
    small = {"kv_cache_memory_bytes": 1_500_000, "max_model_len": 256, "max_num_seqs": 16}
    with drafted_by(LLM(speculative_config=fixed, check_invariants=True, **small), oracle) as llm:
        for name in ("greedy", "seeded"):
            oracle.learn(plain(name))
            assert told(llm.generate(PROMPTS, PARAMS[name], progress=False)) == told(plain(name))
        assert llm.assembly.engine.scheduler.num_preemptions > 0


@pytest.mark.parametrize("kernels", ["auto", "reference"])
def test_windows_pass_over_draft_tokens(kernels: str, tmp_path: Path) -> None:
    path = tmp_path / "tiny.json"
    path.write_text(json.dumps({**CONFIG, "model_type": "mistral", "sliding_window": 24}))
    settings: dict[str, Any] = {"model": str(path), "load_format": "dummy", "skip_tokenizer_init": True}
    settings |= {"kernels": kernels, "max_model_len": 128, "dtype": "float32", "check_invariants": True}
    asked = SamplingParams(temperature=0.0, max_tokens=60, ignore_eos=True, logprobs=1)
    prompts = [[5, 6, 7, 8] * 6, [11, 12, 13]]
    with LLM(**settings, speculative_config=OFF) as llm:
        outputs = llm.generate(prompts, asked, progress=False)
    oracle = Oracle()
    oracle.learn(outputs)
    fixed = {"method": "suffix", "num_speculative_tokens": 5}
    with drafted_by(LLM(**settings, speculative_config=fixed), oracle) as llm:
        found = llm.generate(prompts, asked, progress=False)
        assert [one.outputs[0].token_ids for one in found] == [one.outputs[0].token_ids for one in outputs]
        assert llm.assembly.engine.counts.num_accepted_tokens > 30


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"method": "magic"}, "method 'magic' is none of auto, off, suffix"),
        ({"methods": "off"}, "no key 'methods'; it knows method, model, "),
        ({"method": "suffix", "num_speculative_tokens": 0}, "must be a number from 1 to 63"),
        ({"num_speculative_tokens": 4}, "needs a named method, not auto"),
        ({"method": "draft_model", "quantization": "int3"}, "quantization 'int3' is none of none, int8"),
        (
            {"method": "suffix", "model": "minnow"},
            "model needs auto or draft_model or eagle or medusa, not suffix",
        ),
        ({"method": "draft_model", "shared": True}, "shared needs suffix or auto, not draft_model"),
        ({"method": "draft_model", "branches": 8, "num_speculative_tokens": 8}, "times branches is more than 63"),
        ({"verification": "hopeful"}, "verification 'hopeful' is none of coupled, rejection, typical"),
        (
            {"method": "off", "verification": "rejection"},
            "verification rejection needs a method that drafts, not off",
        ),
        ({"verification": "typical", "typical_epsilon": 1}, "typical_epsilon 1 must be a number above 0 and below 1"),
        ({"verification": "typical", "typical_delta": "x"}, "typical_delta 'x' must be a number above 0"),
    ],
)
def test_what_makes_no_sense_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        LLM(speculative_config=given)
