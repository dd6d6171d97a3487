"""Drafts of a real model judged by rules that look at distributions: the law of answers, and log-probabilities."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from archerfish.execution.backends.eager import EagerModel
from archerfish.execution.step.rows import Rows
from archerfish.kvcache.layout import kv_layout
from archerfish.kvcache.storage import KVStorage
from archerfish.models.decoder import Decoder
from archerfish.ops.reference.drawing import draw
from archerfish.ops.reference.noise import gumbel
from archerfish.ops.reference.probabilities import probabilities
from archerfish.request import SamplingParams, Speculation, Structured
from archerfish.sampling.grammar_cache import GrammarCache
from archerfish.sampling.row_grammars import RowGrammars
from archerfish.sampling.sampler import Sampler
from archerfish.scheduling.plan import Chunk, Plan, SequenceStart, StepResult
from archerfish.speculation.controller import SpeculationController
from archerfish.speculation.draft import NO_DRAFT, ROOT, Draft
from archerfish.speculation.method import SpeculationMethod
from archerfish.speculation.proposer import DraftRequest
from archerfish.speculation.verification import verifier
from archerfish.speculation.verification.verifier import VerificationConfig, Verifier
from archerfish.tokenizer import Tokenizer
from tests.checkpoints import write_tokenizer
from tests.execution.archs import FULL
from tests.execution.executors import local_executor
from tests.execution.test_local import OPS, random_model, whole_logits
from tests.ops.draws import rows_of
from tests.sampling import naive
from tests.sampling.chance import surprise
from tests.speculation.enumeration import (
    PARAMS,
    Branches,
    DraftOffer,
    Independent,
    Likeliest,
    Row,
    Target,
    Tokens,
    WithoutReplacement,
    depth_of,
    distance,
    drafted,
    law_of,
    name,
)

VOCABULARY, NUM_ROWS, BLOCK_SIZE = 4, 32, 16
PROMPT = (1, 0, 3)
ROUNDING = 1e-5
"""Attention over a cache rounds otherwise than attention over everything at once."""
NOTICED = 0.005
R = ROOT


def tiny(vocabulary: int = VOCABULARY) -> Decoder:
    model = random_model(replace(FULL, vocab_size=vocabulary, layers=FULL.layers[:2]), seed=4)
    model.head.weight.data *= 12.0  # Sure enough of itself for filters to matter.
    return model


@dataclass(frozen=True)
class ModelTarget(Target):
    """The model's distributions without cache, drafts or executor, edited and filtered by plain Python."""

    model: Decoder = field(default_factory=tiny, hash=False)
    bar: Callable[[list[float], Tokens], list[float]] = field(default=lambda row, _: row, hash=False)
    """What else is done to logits, given what was written."""

    def after(self, written: Tokens) -> Tensor:
        params = self.params
        with torch.inference_mode():
            row = whole_logits(self.model, [*PROMPT, *written])[-1].tolist()
        logits = naive.penalize(self.bar(row, written), PROMPT, written, params)
        draw_params = {one: getattr(params, one) for one in ("temperature", "top_k", "top_p", "min_p")}
        return probabilities(torch.tensor([logits]), rows_of(draw_params))[0]


class Proposer:
    """Drafts by whatever is given: (row, what is written, how many at most) -> a draft."""

    def __init__(self) -> None:
        self.draft_for: Callable[[int, Tokens, int], Draft]
        self.seen: list[tuple[Draft, list[int]]] = []
        self._rows: dict[int, list[int]] = {}

    def start(self, row: int, tokens: Sequence[int], num_prompt_tokens: int, tenant: str) -> None:
        self._rows[row] = list(tokens[num_prompt_tokens:])

    def extend(self, row: int, tokens: Sequence[int]) -> None:
        self._rows[row] += tokens

    def has_hint(self, row: int) -> bool:
        return True

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        return [
            self.draft_for(draft_request.row, tuple(self._rows[draft_request.row]), draft_request.max_tokens)
            for draft_request in requests
        ]

    def observe(self, row: int, draft: Draft, drawn: Sequence[int]) -> None:
        self.seen.append((draft, list(drawn)))


class Bench:
    """An executor whose rows all have the prompt in their caches: a step answers at once."""

    def __init__(self, model: Decoder, rules: VerificationConfig, grammars: RowGrammars | None = None) -> None:
        storage = KVStorage(kv_layout(model.arch), NUM_ROWS, BLOCK_SIZE, torch.float32, "cpu", OPS)
        rows = Rows(NUM_ROWS, BLOCK_SIZE, 1, BLOCK_SIZE)
        self.proposer = Proposer()
        method = SpeculationMethod("scripted", self.proposer, max_draft_tokens=8)
        controller = SpeculationController([method], "scripted", rows, lambda: 0.0, 8)
        sampler = Sampler(NUM_ROWS, draw, grammars)
        verifier = Verifier(sampler, rules)
        runnable = EagerModel(model, storage)
        self.executor = local_executor(runnable, storage, rows, sampler, controller, verifier)
        self._filled: set[int] = set()

    def answer(self, params: SamplingParams, seeds: Sequence[int], num_draft_tokens: int) -> StepResult:
        """What a first step writes on as many rows."""
        starts = [
            SequenceStart(
                row=row,
                tokens=PROMPT,
                num_prompt_tokens=len(PROMPT),
                blocks=((row,),),
                params=params,
                seed=seed,
                stop_token_ids=(1,),
            )
            for row, seed in enumerate(seeds)
        ]
        last = len(PROMPT) - 1
        new = [row for row in range(len(seeds)) if row not in self._filled]
        if new:
            self._filled.update(new)
            self.executor.run(Plan(0, starts, [], [Chunk(row, 0, last, False) for row in new]))
        chunks = [Chunk(row, last, 1, True, (), num_draft_tokens) for row in range(len(seeds))]
        return self.executor.run(Plan(1, starts, [], chunks, num_draft_tokens))

    def forward_next(self, lengths: dict[int, int], num_draft_tokens: int) -> StepResult:
        """Another step, of rows that have so many tokens."""
        chunks = [Chunk(row, length - 1, 1, True, (), num_draft_tokens) for row, length in lengths.items()]
        return self.executor.run(Plan(2, [], [], chunks, num_draft_tokens))


def drawn_tree(offer: DraftOffer, parents: Tokens, written: Tokens, choose: Callable[[Row, int], int]) -> Draft:
    """A draft for a tree of this shape: `choose` draws the next one, at a depth, from what is offered."""
    draft, claimed = NO_DRAFT, []
    for parent in parents:
        siblings = tuple(draft.tokens[child] for child in draft.children(parent))
        before = (*written, *drafted(draft, parent))
        claimed.append(offer.claimed(before, siblings))
        token = choose(offer.row(before, siblings), len(before) - len(written))
        draft = Draft((*draft.tokens, token), (*draft.parents, parent))
    # A proposer that is certain need not say so.
    certain = all(max(row) == 1.0 for row in claimed)
    return replace(draft, proposals=None if certain else torch.tensor(claimed, dtype=torch.float64))


def executed_law(bench: Bench, offer: DraftOffer, parents: Tokens, patch: pytest.MonkeyPatch) -> dict[Tokens, float]:
    """Return the law of what a step writes, over all drafts that can be drawn and all decisions about them."""

    def play(branches: Branches) -> Tokens:
        bench.proposer.draft_for = lambda _, written, __: drawn_tree(
            offer, parents, written, lambda row, _: branches.choose(row)
        )
        patch.setattr(verifier, "SeededVerificationRng", lambda *_: branches)
        result = bench.answer(offer.target.params, [0], len(parents))
        assert result.num_draft_tokens and not result.failures
        return tuple(result.tokens[0])

    return dict(law_of(play))


def discrepancy(bench: Bench, offer: DraftOffer, parents: Tokens, patch: pytest.MonkeyPatch) -> float:
    """Between what a step writes, carried on by the model, and the model alone."""
    found, target = executed_law(bench, offer, parents, patch), offer.target
    horizon = depth_of(parents) + 1
    return distance(target.extended(found, horizon), target.law(horizon))


@cache
def bench_of(rule: str, vocabulary: int = VOCABULARY) -> Bench:
    return Bench(tiny(vocabulary), VerificationConfig(rule))  # type: ignore[arg-type]


@pytest.mark.parametrize("params_name", PARAMS)
@pytest.mark.parametrize("offer", [Independent, Likeliest], ids=name)
def test_answers_by_rejection_have_the_law_of_the_model(
    params_name: str, offer: type[DraftOffer], monkeypatch: pytest.MonkeyPatch
) -> None:
    target = ModelTarget(VOCABULARY, 3, PARAMS[params_name])
    assert discrepancy(bench_of("rejection"), offer(target), (R, 0), monkeypatch) < ROUNDING


@pytest.mark.parametrize(
    ("params_name", "parents"), [("plain", (R, R, 1)), ("top_k", (R, R)), ("penalties", (R, R))], ids=str
)
def test_so_they_have_by_trees(params_name: str, parents: Tokens, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where penalties read what is written, only the first line of a tree is checked."""
    target = ModelTarget(VOCABULARY, 3, PARAMS[params_name])
    assert discrepancy(bench_of("rejection"), WithoutReplacement(target), parents, monkeypatch) < ROUNDING


def test_what_a_row_is_edited_by_is_part_of_the_law(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until two tokens are written, 1 may not be drawn: a stop token before min_tokens."""
    bias = {1: 2.0, 2: 1.5}
    params = SamplingParams(temperature=0.8, logit_bias=bias, allowed_token_ids=(0, 1, 2), min_tokens=2, top_p=0.95)

    def edited(row: list[float], written: Tokens) -> list[float]:
        return naive.edit(row, params, (1,), 2, len(written))

    target = ModelTarget(VOCABULARY, 3, params, bar=edited)
    assert sum(chance for (*_, last), chance in target.law(3).items() if last == 1) > 0.02
    assert discrepancy(bench_of("rejection"), Independent(target), (R, 0), monkeypatch) < ROUNDING


class Misled(Independent):
    """Claims that draft tokens are drawn from another distribution than they are."""

    def claimed(self, written: Tokens, siblings: Tokens) -> Row:
        return self.own((*written, 9))


def test_what_is_wrong_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    target = ModelTarget(VOCABULARY, 3)
    assert discrepancy(bench_of("rejection"), Misled(target), (R, 0), monkeypatch) > NOTICED
    assert discrepancy(bench_of("typical"), Independent(target), (R, 0), monkeypatch) > NOTICED
    greedy = ModelTarget(VOCABULARY, 3, PARAMS["greedy"])
    assert discrepancy(bench_of("typical"), Independent(greedy), (R, 0), monkeypatch) < ROUNDING


# -- grammars -----------------------------------------------------------------------------------------------------


FORMS = ("ab", "abba", "ba", "bbb", "c")


class FewTokens(DraftOffer):
    """Some that the form allows at first, and one that it never does."""

    def __init__(self, target: Target, tokens: Tokens) -> None:
        super().__init__(target)
        self._tokens = tokens

    def row(self, written: Tokens, siblings: Tokens) -> Row:
        return tuple(1 / len(self._tokens) if token in self._tokens else 0.0 for token in range(self.target.vocabulary))


def test_a_grammar_is_part_of_the_law(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_tokenizer(tmp_path)
    tokenizer, end = Tokenizer.load(tmp_path), 1
    model = tiny(tokenizer.vocab_size)
    texts = {token: tokenizer.token_text(token) for token in range(2, tokenizer.vocab_size)}

    def bar(row: list[float], written: Tokens) -> list[float]:
        so_far = "".join(texts[token] for token in written)
        may = {token for token, text in texts.items() if any(form.startswith(so_far + text) for form in FORMS)}
        may |= {end} if so_far in FORMS else set()
        return [value if token in may else -np.inf for token, value in enumerate(row)]

    params = SamplingParams(temperature=2.0, structured=Structured(choice=FORMS))
    target = ModelTarget(tokenizer.vocab_size, 0, params, model=model, bar=bar)
    grammars = RowGrammars(GrammarCache(tokenizer, tokenizer.vocab_size, (end,)))
    tokens = tuple(token for token, text in texts.items() if text in ("a", "b", "x"))
    found = executed_law(
        Bench(model, VerificationConfig("rejection"), grammars), FewTokens(target, tokens), (R,), monkeypatch
    )
    pairs: dict[Tokens, float] = defaultdict(float)
    for written, chance in found.items():
        for last in [()] if len(written) > 1 else [(token,) for token in possible(target, written)]:
            pairs[(*written, *last)] += chance * (float(target.after(written)[last[0]]) if last else 1.0)
    law = {
        (one, two): float(target.after(())[one] * target.after((one,))[two])
        for one in possible(target, ())
        for two in possible(target, (one,))
    }
    assert len(law) > 3 and distance(pairs, law) < ROUNDING
    assert any(len(written) > 1 for written in found)


def possible(target: Target, written: Tokens) -> list[int]:
    return target.after(written).nonzero()[:, 0].tolist()


# -- decisions of production --------------------------------------------------------------------------------------


HORIZON, NUM_SEEDS, MANY = 2, 800, 8


def counted(bench: Bench, offer: DraftOffer) -> dict[Tokens, int]:
    """Answers of as many seeds. Drafts are drawn by the noise of ordinary draws, and after some tokens none is."""
    counts: dict[Tokens, int] = defaultdict(int)
    for first in range(0, NUM_SEEDS, NUM_ROWS):
        seeds = range(first, first + NUM_ROWS)

        def draft_for(row: int, written: Tokens, most: int, seeds: Sequence[int] = seeds) -> Draft:
            if written and written[-1] % 2:
                return NO_DRAFT
            at = len(PROMPT) + len(written)
            noise = noise_of(seeds[row], at, most)
            parents = tuple(range(-1, most - 1))
            return drawn_tree(
                offer,
                parents,
                written,
                lambda weights, depth: int((np.log(weights) + noise[depth]).argmax()),
            )

        bench.proposer.draft_for = draft_for
        written = dict(enumerate(bench.answer(offer.target.params, seeds, 2).tokens))
        while short := {row: len(PROMPT) + len(tokens) for row, tokens in written.items() if len(tokens) < HORIZON}:
            for row, tokens in zip(short, bench.forward_next(short, 2).tokens, strict=True):
                written[row] += tokens
        for tokens in written.values():
            counts[tuple(tokens[:HORIZON])] += 1
    return counts


def noise_of(seed: int, position: int, count: int) -> np.ndarray:
    seeds, positions = torch.full((count,), seed), torch.arange(position, position + count)
    return gumbel(seeds, positions, torch.arange(MANY)).numpy()


@pytest.mark.parametrize("params_name", ["plain", "everything"])
def test_answers_are_counted_as_often_as_the_model_says(params_name: str) -> None:
    target = ModelTarget(MANY, 3, PARAMS[params_name], model=tiny(MANY))
    counts, law = counted(bench_of("rejection", MANY), Independent(target)), target.law(HORIZON)
    assert surprise([counts[tokens] for tokens in law], list(law.values())) < 4.5


def test_an_answer_that_drifts_would_be_noticed() -> None:
    target = ModelTarget(MANY, 3, model=tiny(MANY))
    counts, law = counted(bench_of("rejection", MANY), Misled(target)), target.law(HORIZON)
    assert surprise([counts[tokens] for tokens in law], list(law.values())) > 10


# -- log-probabilities --------------------------------------------------------------------------------------------


@pytest.fixture
def fixed_draft_tokens() -> Iterator[Bench]:
    """Every row is offered tokens 0 and 2."""
    bench = Bench(tiny(), VerificationConfig())
    bench.proposer.draft_for = lambda *_: Draft.chain([0, 2])
    yield bench


def test_logprobs_are_those_of_the_tokens_that_were_chosen(fixed_draft_tokens: Bench) -> None:
    choice = Speculation(verification="rejection")
    params = SamplingParams(temperature=1.5, logprobs=2, speculation=choice)
    lengths = set()
    result = fixed_draft_tokens.answer(params, range(NUM_ROWS), 2)
    for place, tokens in enumerate(result.tokens):
        lengths.add(len(tokens))
        with torch.inference_mode():
            logprobs = torch.log_softmax(whole_logits(tiny(), [*PROMPT, *tokens]), -1)[len(PROMPT) - 1 :]
        entries = result.logprobs[place]
        assert [entry.token_id for entry in entries] == tokens
        wanted = [float(row[token]) for row, token in zip(logprobs, tokens, strict=False)]
        assert [entry.logprob for entry in entries] == pytest.approx(wanted, abs=1e-4)
    assert len(lengths) == 3, "all, some and none of the draft tokens were accepted"


def test_rows_have_rules_of_their_own(fixed_draft_tokens: Bench) -> None:
    """The service's rule is coupled: its rows write what they would without drafts, whatever other rows use."""
    executor, proposer = fixed_draft_tokens.executor, fixed_draft_tokens.proposer
    plain = SamplingParams(temperature=1.5)
    alone = fixed_draft_tokens.answer(plain, range(NUM_ROWS), 0).tokens
    by_rejection = replace(plain, speculation=Speculation(verification="rejection"))
    expected = fixed_draft_tokens.answer(by_rejection, range(NUM_ROWS), 2).tokens
    starts, chunks = [], []
    for row in range(NUM_ROWS):
        params = plain if row % 2 else by_rejection
        starts.append(
            SequenceStart(
                row=row,
                tokens=PROMPT,
                num_prompt_tokens=3,
                blocks=((row,),),
                params=params,
                seed=row,
                stop_token_ids=(),
            )
        )
        chunks.append(Chunk(row, 2, 1, True, (), 2))
    proposer.seen.clear()
    found = executor.run(Plan(3, starts, [], chunks, 2)).tokens
    for row in range(NUM_ROWS):
        assert found[row] == expected[row] if row % 2 == 0 else found[row][0] == alone[row][0]
    assert [one[:1] for one in expected] != alone, "another rule, other tokens"


def test_proposers_of_such_rows_hear_what_is_likeliest(fixed_draft_tokens: Bench) -> None:
    """Not draws: these are by the noise of positions at which a later token may be drawn in the ordinary way."""
    params = SamplingParams(temperature=1.5, speculation=Speculation(verification="rejection"))
    fixed_draft_tokens.answer(params, [7], 2)
    with torch.inference_mode():
        likeliest = whole_logits(tiny(), [*PROMPT, 0, 2])[len(PROMPT) - 1 :].argmax(-1).tolist()
    assert fixed_draft_tokens.proposer.seen == [(Draft.chain([0, 2]), likeliest)]


@pytest.mark.parametrize("rule", ["rejection", "typical"])
def test_a_row_from_which_nothing_can_be_drawn_fails(rule: str) -> None:
    model = tiny()
    bench = Bench(model, VerificationConfig(rule))  # type: ignore[arg-type]
    bench.proposer.draft_for = lambda *_: Draft.chain([0, 2])
    for parameter in model.parameters():
        parameter.data.fill_(torch.nan)
    result = bench.answer(SamplingParams(), [1], 2)
    assert "not finite" in result.failures[0]
