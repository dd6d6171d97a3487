"""The draw of a step: each row by its own parameters, whatever else is in the step."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from archerfish.errors import InvalidParameter
from archerfish.ops.reference.drawing import draw as reference_draw
from archerfish.ops.reference.filters import filter_logits
from archerfish.ops.reference.noise import gumbel
from archerfish.request import SamplingParams
from archerfish.sampling.sampler import ROWS_AT_ONCE, Sampler
from tests.lanes import examples
from tests.sampling import naive

VOCABULARY = 40
NUM_ROWS = 12
GREEDY = SamplingParams(temperature=0.0)


def logits_of(seed, num_rows, vocabulary=VOCABULARY, spread=3.0):
    return torch.randn(num_rows, vocabulary, generator=torch.Generator().manual_seed(seed)) * spread


def draw(params, logits, seeds=None, positions=None, num_prompt=2, history=None, stops=()):
    """One step over fresh rows 0, 1, 2, ..."""
    sampler = Sampler(len(params), reference_draw)
    for row, one in enumerate(params):
        sampler.set_row(row, one, 0 if seeds is None else seeds[row], num_prompt, stops)
    positions = np.full(len(params), num_prompt) if positions is None else np.array(positions)
    history = torch.zeros(len(params), int(positions.max()), dtype=torch.int32) if history is None else history
    return sampler.draw(logits, np.arange(len(params)), positions, history)


def some_params(random):
    """Any mixture of everything that changes a draw, most of it idle."""

    def one_of(idle, *values):
        return idle if random.random() < 0.5 else values[random.integers(len(values))]

    return SamplingParams(
        temperature=one_of(1.0, 0.0, 0.3, 0.9, 1.7, 4.0),
        top_k=one_of(0, 1, 2, 5, 20, 1000),
        top_p=one_of(1.0, 0.1, 0.6, 0.95),
        min_p=one_of(0.0, 0.02, 0.3),
        repetition_penalty=one_of(1.0, 0.7, 1.5),
        presence_penalty=one_of(0.0, -1.0, 1.3),
        frequency_penalty=one_of(0.0, -0.4, 0.6),
        logit_bias=one_of({}, {3: 2.5, 17: -4.0}, {0: -100.0}),
        allowed_token_ids=one_of(None, tuple(range(5, 30))),
        min_tokens=one_of(0, 3),
        logprobs=one_of(None, 0, 3, 20),
    )


def test_greedy_takes_the_likeliest_token_and_needs_no_seed():
    logits = logits_of(0, 8)
    for seeds in ([0] * 8, list(range(8))):
        assert draw([GREEDY] * 8, logits, seeds).tokens == logits.argmax(-1).tolist()


def test_greedy_takes_the_first_of_equally_likely_tokens():
    logits = torch.zeros(1, 500)
    logits[0, [7, 300]] = 2.0
    assert draw([GREEDY], logits).tokens == [7]


@pytest.mark.parametrize("temperature", [0.0, 1e-9, 9.9e-6])
def test_a_temperature_too_small_to_divide_by_is_greedy(temperature):
    params = SamplingParams(temperature=temperature)
    logits = logits_of(1, 6)
    assert params.is_greedy
    assert draw([params] * 6, logits).tokens == logits.argmax(-1).tolist()


@pytest.mark.parametrize("temperature", [1e-5, 1e-4])
def test_the_smallest_temperatures_take_the_likeliest_token_without_overflow(temperature):
    params = SamplingParams(temperature=temperature)
    logits = logits_of(1, 6, spread=30.0)
    drawn = draw([params] * 6, logits)
    assert drawn.tokens == logits.argmax(-1).tolist()
    assert not drawn.failures


def accepted(**values):
    """Parameters, or None where validation already refuses them: what it lets through must work."""
    try:
        return SamplingParams(**values)
    except InvalidParameter:
        return None


@pytest.mark.parametrize("temperature", [1e6, 1e37, 1e39, 1e308])
def test_the_largest_temperatures_draw_only_what_is_allowed(temperature):
    params = accepted(temperature=temperature, allowed_token_ids=(3, 9, 11))
    if params is not None:
        drawn = draw([params] * 200, logits_of(2, 200), seeds=range(200))
        assert set(drawn.tokens) == {3, 9, 11}


@pytest.mark.parametrize("bias", [100.0, 1e30, 1e39])
def test_a_huge_bias_decides_the_draw_and_is_not_blamed_on_the_model(bias):
    params = accepted(logit_bias={5: bias})
    if params is not None:
        drawn = draw([params], logits_of(2, 1))
        assert not drawn.failures
        assert drawn.tokens == [5]


@pytest.mark.parametrize("penalty", [1e-46, 1e-30, 1e30, 1e39])
def test_an_extreme_repetition_penalty_is_not_blamed_on_the_model(penalty):
    params = accepted(repetition_penalty=penalty, temperature=0.0)
    if params is not None:
        logits = torch.tensor([[1.0, 0.0, 3.0, -2.0]])
        drawn = draw([params], logits, history=torch.tensor([[1, 2]], dtype=torch.int32))
        assert not drawn.failures
        assert drawn.tokens == ([2] if penalty < 1 else [0])


@pytest.mark.parametrize("values", [{"top_k": 10**400}, {"top_k": 2**63}, {"min_tokens": 10**400, "max_tokens": None}])
def test_whole_numbers_without_limit_do_not_end_the_step(values):
    """An exception in a step ends every request in it."""
    params = accepted(**values)
    if params is not None:
        assert not draw([params], logits_of(0, 1), stops=(1,)).failures


def test_a_draw_is_the_largest_of_kept_logits_plus_noise():
    """Everything at once, against one row at a time."""
    random = np.random.default_rng(5)
    num_rows, num_checked = 300, 0
    params = [some_params(random) for _ in range(num_rows)]
    seeds = random.integers(0, 2**64, num_rows, np.uint64)
    positions = random.integers(3, 12, num_rows)
    history = random.integers(0, VOCABULARY, (num_rows, 14)).astype(np.int32)
    logits = logits_of(3, num_rows)
    found = draw(params, logits, seeds, positions, num_prompt=3, history=torch.from_numpy(history), stops=(2, 8)).tokens
    for row, one in enumerate(params):
        position = int(positions[row])
        edited = naive.edit(logits[row].tolist(), one, (2, 8), 3 + one.min_tokens, position)
        edited = naive.penalize(edited, history[row, :3].tolist(), history[row, 3:position].tolist(), one)
        if not one.is_greedy:
            try:
                scaled = [x / one.temperature for x in edited]
                edited = naive.keep_likeliest(scaled, one.top_k, one.top_p, one.min_p)
            except naive.TooClose:
                continue
            seed = torch.from_numpy(seeds[row : row + 1].view(np.int64))
            noise = gumbel(seed, torch.tensor([position]), torch.arange(VOCABULARY))[0].tolist()
            edited = [x + y for x, y in zip(edited, noise, strict=True)]
        first, second = sorted(edited)[-1:-3:-1]
        if first - second > 1e-4:
            assert found[row] == edited.index(first), one
            num_checked += 1
    assert num_checked > 280


class Population:
    """Rows with a sequence each, of which steps take any part in any order."""

    def __init__(self, seed, vocabulary=VOCABULARY):
        random = np.random.default_rng(seed)
        self.params = [some_params(random) for _ in range(NUM_ROWS)]
        self.seeds = random.integers(0, 2**64, NUM_ROWS, np.uint64)
        self.positions = random.integers(4, 15, NUM_ROWS)
        self.num_prompt = random.integers(1, 4, NUM_ROWS)
        self.history = random.integers(0, vocabulary, (NUM_ROWS, 16)).astype(np.int32)
        # In steps of a quarter, as 16-bit logits have: ties are common.
        self.logits = (logits_of(seed, NUM_ROWS, vocabulary) * 4).round() / 4
        self.vocabulary = vocabulary

    def draw(self, members, places):
        """Sequence members[i] sits on row places[i] of a sampler of its own."""
        sampler = Sampler(NUM_ROWS, reference_draw)
        history = torch.full((NUM_ROWS, 16), 1, dtype=torch.int32)
        for member, place in zip(members, places, strict=True):
            sampler.set_row(place, self.params[member], self.seeds[member], self.num_prompt[member], (2, 8))
            history[place] = torch.from_numpy(self.history[member])
        return sampler.draw(self.logits[list(members)], np.array(places), self.positions[list(members)], history)


MEMBERS = st.permutations(range(NUM_ROWS)).flatmap(
    lambda order: st.integers(1, NUM_ROWS).map(lambda size: tuple(order[:size]))
)


@examples(150)
@given(st.integers(0, 30), MEMBERS, st.permutations(range(NUM_ROWS)))
def test_a_draw_depends_on_nothing_but_its_own_sequence(seed, members, rows):
    population = Population(seed)
    together = population.draw(members, rows[: len(members)])
    for place, member in enumerate(members):
        alone = population.draw([member], [member])
        assert together.tokens[place] == alone.tokens[0]
        assert together.logprobs.get(place) == alone.logprobs.get(0)
        assert together.failures.get(place) == alone.failures.get(0)


def test_a_row_forgets_the_sequence_it_held_before():
    population = Population(3)
    for member in range(NUM_ROWS):
        sampler = Sampler(2, reference_draw)
        for tenant in [*range(NUM_ROWS), member]:
            sampler.set_row(
                1, population.params[tenant], population.seeds[tenant], population.num_prompt[tenant], (2, 8)
            )
        history = torch.from_numpy(population.history[[member, member]])
        drawn = sampler.draw(population.logits[[member]], np.array([1]), population.positions[[member]], history)
        assert drawn == population.draw([member], [0])


@pytest.mark.parametrize("num_rows", [ROWS_AT_ONCE - 1, ROWS_AT_ONCE, 2 * ROWS_AT_ONCE + 5])
def test_rows_drawn_in_slices_are_drawn_as_if_alone(num_rows):
    random = np.random.default_rng(num_rows)
    params = [some_params(random) for _ in range(num_rows)]
    logits = (logits_of(2, num_rows) * 4).round() / 4
    params[-1], logits[-1, 4] = SamplingParams(), math.nan
    together = draw(params, logits, seeds=range(num_rows))
    assert num_rows - 1 in together.failures
    for row in range(num_rows):
        alone = draw([params[row]], logits[[row]], seeds=[row])
        assert together.tokens[row] == alone.tokens[0]
        assert together.logprobs.get(row) == alone.logprobs.get(0)
        assert together.failures.get(row) == alone.failures.get(0)


def watch_noise(monkeypatch):
    """A list that grows with (rows, tokens) whenever noise is made."""
    seen = []

    def watched(seeds, positions, tokens):
        seen.append((len(seeds), tokens.shape[-1]))
        return gumbel(seeds, positions, tokens)

    monkeypatch.setattr("archerfish.ops.reference.drawing.gumbel", watched)
    return seen


def test_the_work_of_a_draw_is_bounded_however_many_rows_there_are(monkeypatch):
    seen = watch_noise(monkeypatch)
    draw([SamplingParams()] * 100, logits_of(1, 100), seeds=range(100))
    assert max(num_rows for num_rows, _ in seen) <= ROWS_AT_ONCE


@pytest.mark.parametrize("asked", [{"top_k": 50}, {"top_k": 50, "top_p": 0.9, "min_p": 0.01}, {"min_p": 0.1}])
def test_tokens_that_cannot_be_drawn_get_no_noise(monkeypatch, asked):
    seen = watch_noise(monkeypatch)
    draw([SamplingParams(**asked)] * 4, logits_of(1, 4, 5000), seeds=range(4))
    assert max(num_tokens for _, num_tokens in seen) <= 64


WIDE = 3000


@pytest.mark.parametrize("kind", ["smooth", "ties", "all equal", "few possible", "far apart"])
@pytest.mark.parametrize(
    "asked",
    [
        {"top_k": 1},
        {"top_k": 40},
        {"top_k": 1500},
        {"top_k": 10**6},
        {"top_k": 300, "top_p": 0.77, "min_p": 0.003},
        {"top_p": 0.61},
        {"min_p": 0.05},
        {},
    ],
    ids=str,
)
def test_shortcuts_draw_what_noise_for_the_whole_vocabulary_draws(kind, asked):
    num_rows = 60
    logits = logits_of(5, num_rows, WIDE)
    if kind == "ties":
        logits = (logits / 3).round()
    elif kind == "all equal":
        logits = torch.zeros(num_rows, WIDE)
    elif kind == "few possible":
        logits[:, torch.arange(WIDE) % 700 != 3] = -math.inf
    elif kind == "far apart":
        logits *= 20
    params = [SamplingParams(temperature=0.5 + row / 40, **asked) for row in range(num_rows)]
    found = draw(params, logits, seeds=range(num_rows)).tokens

    def column(name, idle):
        values = torch.tensor([float(getattr(one, name)) for one in params])
        return None if (values == idle).all() else values

    scaled = logits / torch.tensor([[one.temperature] for one in params])
    kept = filter_logits(scaled, column("top_k", 0.0), column("top_p", 1.0), column("min_p", 0.0))
    noise = gumbel(torch.arange(num_rows), torch.full((num_rows,), 2), torch.arange(WIDE))
    assert found == (kept + noise).argmax(-1).tolist()


def test_a_row_that_occurs_several_times_in_a_step_is_drawn_at_each_position():
    population = Population(4)
    sampler = Sampler(2, reference_draw)
    for member in range(NUM_ROWS):
        sampler.set_row(1, population.params[member], population.seeds[member], population.num_prompt[member], (2, 8))
        history = torch.from_numpy(population.history[[member, member]])
        logits, positions = population.logits[:5], np.array([7, 4, 5, 7, 9])
        together = sampler.draw(logits, np.ones(5, np.int64), positions, history)
        for place in range(5):
            alone = sampler.draw(logits[[place]], np.array([1]), positions[[place]], history)
            assert together.tokens[place] == alone.tokens[0]
            assert together.logprobs.get(place) == alone.logprobs.get(0)
            assert together.failures.get(place) == alone.failures.get(0)


def test_the_largest_seed_works():
    params = [SamplingParams(seed=2**64 - 1)] * 3
    tokens = draw(params, logits_of(4, 1).expand(3, -1), seeds=[2**64 - 1, 2**63, 2**64 - 1]).tokens
    assert tokens[0] == tokens[2]


def test_the_logits_a_step_was_given_are_not_changed():
    population = Population(1)
    before = population.logits.clone()
    population.draw(range(NUM_ROWS), range(NUM_ROWS))
    assert torch.equal(population.logits, before)


MIXED = [
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=0.8, seed=1),
    SamplingParams(temperature=0.8, top_k=3, top_p=0.9, min_p=0.01),
    SamplingParams(repetition_penalty=1.2, logprobs=2),
]


@pytest.mark.parametrize("params", MIXED, ids=["greedy", "random", "filtered", "penalized"])
@pytest.mark.parametrize("broken", ["one nan", "all nan", "inf", "nothing possible"])
def test_a_row_nothing_can_be_drawn_from_fails_alone(params, broken):
    logits = logits_of(5, 5)
    if broken == "one nan":
        logits[2, 17] = math.nan
    else:
        logits[2] = {"all nan": math.nan, "inf": math.inf, "nothing possible": -math.inf}[broken]
    drawn = draw([params] * 5, logits, seeds=range(5))
    assert set(drawn.failures) == {2}
    assert ("forbid" if broken == "nothing possible" else "not finite") in drawn.failures[2]
    assert 0 <= drawn.tokens[2] < VOCABULARY
    others = [0, 1, 3, 4]
    fine = draw([params] * 4, logits[others], seeds=others)
    assert [drawn.tokens[place] for place in others] == fine.tokens
    assert [drawn.logprobs.get(place) for place in others] == [fine.logprobs.get(place) for place in range(4)]


def test_parameters_that_forbid_every_token_fail_their_own_row_only():
    stuck = SamplingParams(allowed_token_ids=(2,), min_tokens=4)
    params = [GREEDY, stuck, SamplingParams(temperature=0.7), stuck]
    logits = logits_of(6, 4)
    drawn = draw(params, logits, seeds=range(4), positions=[3, 3, 3, 6], stops=(2,))
    assert set(drawn.failures) == {1}, "the last row's stop token may be drawn again"
    assert drawn.tokens[0] == int(logits[0].argmax())
    assert drawn.tokens[3] == 2


def logprobs_of(logits, params):
    return draw(params, logits, seeds=range(len(params))).logprobs


def test_log_probabilities_are_those_of_the_unchanged_logits():
    random = np.random.default_rng(9)
    logits = logits_of(7, 20)
    params = [
        SamplingParams(temperature=0.5, top_k=3, logit_bias={1: 5.0}, repetition_penalty=1.5, logprobs=int(n))
        for n in random.integers(0, 8, 20)
    ]
    drawn = draw(params, logits, seeds=range(20))
    assert set(drawn.logprobs) == set(range(20))
    for row, entry in drawn.logprobs.items():
        wanted = naive.log_softmax(logits[row].tolist())
        assert entry.token_id == drawn.tokens[row]
        assert entry.logprob == pytest.approx(wanted[entry.token_id], abs=1e-5)
        assert entry.rank == 1 + sum(x > logits[row, entry.token_id] for x in logits[row])
        likeliest = sorted(range(VOCABULARY), key=lambda token: -wanted[token])[: params[row].logprobs]
        assert [token for token, _ in entry.top] == likeliest
        assert [value for _, value in entry.top] == pytest.approx([wanted[token] for token in likeliest], abs=1e-5)


def test_the_drawn_tokens_value_is_bit_equal_to_its_value_in_the_list():
    params = [SamplingParams(logprobs=VOCABULARY, temperature=2.0)] * 30
    for entry in logprobs_of(logits_of(8, 30), params).values():
        assert dict(entry.top)[entry.token_id] == entry.logprob
        assert len(entry.top) == VOCABULARY


def test_only_rows_that_ask_get_log_probabilities_and_as_many_as_they_ask_for():
    params = [SamplingParams(logprobs=n) for n in (None, 0, 5, 1, None)]
    entries = logprobs_of(logits_of(8, 5), params)
    assert {place: len(entry.top) for place, entry in entries.items()} == {1: 0, 2: 5, 3: 1}


def tied_logits(vocabulary=1000):
    logits = torch.zeros(1, vocabulary)
    logits[0, ::3] = 1.0
    return logits


@pytest.mark.parametrize("wanted", [1, 2, 5, 20])
def test_equally_likely_tokens_are_listed_the_same_whatever_neighbours_ask(wanted):
    logits = tied_logits()
    alone = logprobs_of(logits, [SamplingParams(temperature=0.0, logprobs=wanted)])[0]
    for neighbour in (2, 10, 100, 1000):
        params = [SamplingParams(temperature=0.0, logprobs=n) for n in (wanted, neighbour)]
        assert logprobs_of(logits.expand(2, -1), params)[0] == alone


@pytest.mark.parametrize("wanted", [1, 2, 20])
def test_the_token_greedy_takes_heads_the_list_of_the_likeliest(wanted):
    entry = logprobs_of(tied_logits(), [SamplingParams(temperature=0.0, logprobs=wanted)])[0]
    assert entry.rank == 1
    assert entry.top[0] == (entry.token_id, entry.logprob)


def test_forbidden_tokens_of_the_model_itself_have_no_probability():
    logits = logits_of(9, 1)
    logits[0, 10:] = -math.inf
    entry = logprobs_of(logits, [SamplingParams(logprobs=VOCABULARY)])[0]
    assert [value for _, value in entry.top[10:]] == [-math.inf] * 30
    assert math.fsum(math.exp(value) for _, value in entry.top) == pytest.approx(1.0)
