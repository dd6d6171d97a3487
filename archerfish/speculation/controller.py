"""The speculation controller: chooses each step's drafts, and learns what became of them.

It is called twice for each step: `propose` returns the drafts to verify, `record` learns what was sampled and publishes
how many draft tokens each chunk of the next step may have. What drafts cost in vain is debited to a budget of steps, so
that speculation never slows an engine down by much, whatever it is given.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from math import ceil
from typing import NamedTuple

from archerfish.execution.step.rows import Rows
from archerfish.scheduling.plan import Chunk, Plan
from archerfish.speculation.constants import CONSTANTS
from archerfish.speculation.cost_model import DraftOffer, PlannedStep, SpeculationCostModel
from archerfish.speculation.draft import NO_DRAFT, Draft
from archerfish.speculation.method import SpeculationMethod
from archerfish.speculation.proposer import DraftRequest
from archerfish.speculation.sequences import SpeculatedSequences
from archerfish.speculation.verification.verifier import VerifiedTokens

Clock = Callable[[], float]
TakesTree = Callable[[Chunk], bool]
"""Whether the draft after a chunk may be a tree."""


class _Offer(NamedTuple):
    """A draft that a method has or could make for a chunk."""

    method: SpeculationMethod
    chunk_index: int
    """The chunk's index in its plan."""
    request: DraftRequest
    offer: DraftOffer
    draft: Draft
    """NO_DRAFT where a drafter has yet to propose it."""


@dataclass(slots=True)
class _TimedStep:
    """A step in progress. It lasts until the next one begins."""

    started: float
    planned: PlannedStep
    is_representative: bool
    """Its latency says something of others of its kind."""
    considered: list[str] = field(default_factory=list)
    """Methods that were considered for drafts."""
    drafted: list[str] = field(default_factory=list)
    """Methods whose drafts are verified."""
    num_tokens: int = 0
    """Tokens of the step, draft tokens included."""
    num_written: int = 0
    drafting_seconds: float = 0.0
    """Seconds of drafter passes."""
    excluded_seconds: float = 0.0
    """Seconds that say nothing of other steps."""


class SpeculationController:
    """Chooses methods and draft lengths for an executor's rows."""

    def __init__(
        self,
        methods: Sequence[SpeculationMethod],
        default_method: str,
        rows: Rows,
        clock: Clock,
        num_speculative_tokens: int | None = None,
        cost_model: SpeculationCostModel | None = None,
    ) -> None:
        """Requests that choose no method use the default one: the name of a method, or auto.

        `num_speculative_tokens` fixes the draft length; without it, the cost model chooses the one that pays.
        """
        self.methods = methods
        self.cost_model = SpeculationCostModel() if cost_model is None else cost_model
        """The cost model of steps that sample for one sequence."""
        self._cost_models = {1: self.cost_model}
        """Cost models by the number of sequences: the bits of the number."""
        self.proposing_seconds = 0.0
        """Seconds that the last `propose` took to find drafts."""
        self.saved_seconds = 0.0
        """Estimated seconds that drafts of the step before the last `propose` saved; negative if they cost."""
        self.budgets = {method.name: CONSTANTS.initial_budget for method in methods}
        """Steps that each method may cost in vain. It tries nothing while its budget is overdrawn, and no other's."""
        self._rows = rows
        self._clock = clock
        self._num_speculative_tokens = num_speculative_tokens
        self._drafters = [method.drafter for method in methods if method.drafter is not None]
        self._sequences = SpeculatedSequences(methods, default_method)
        self._offers: list[_Offer] = []
        """Offers that are verified in this step, with their drafts."""
        self._step = self._num_credited = 0
        """The number of the next step, and of the last one that was credited to the budget."""
        self._idle_until = 0
        """The step before which no sequence is due."""
        self._timed: _TimedStep | None = None
        self._num_plain = self._num_speculative = 0
        """Steps for which no drafts were considered since others were, and the others since one of those was timed."""
        self._reads_prompt = False
        """Whether the last step computed part of a prompt."""
        self.max_draft_tokens = self._most_draft_tokens(self._sequences.default_methods)
        """Draft tokens that each chunk of the next step may have."""

    def fresh_copy(
        self,
        default_method: str,
        num_speculative_tokens: int | None = None,
        cost_model: SpeculationCostModel | None = None,
    ) -> "SpeculationController":
        """Return another controller of the same methods, which begins with what this one has learned.

        Benchmarks use them to compare settings in turns. With a cost model given, several controllers share it.
        """
        if cost_model is None:
            cost_model = deepcopy(self.cost_model)
        methods = [method.fresh_copy(cost_model.drafter_passes) for method in self.methods]
        return SpeculationController(
            methods, default_method, self._rows, self._clock, num_speculative_tokens, cost_model
        )

    def profile(self) -> None:
        """Time drafter passes before the first plan."""
        for drafter in self._drafters:
            drafter.profile()

    # -- propose ------------------------------------------------------------------------------------------------------

    def propose(self, plan: Plan, takes_tree: TakesTree) -> list[Draft] | None:
        """Begin a step. Return the draft of each chunk, which is written to its row; None if there are no drafts."""
        for drafter in self._drafters:
            drafter.begin_step(plan)
        last, self._timed, self._offers = self._timed, None, []
        self.saved_seconds = self.proposing_seconds = 0.0
        is_plain = not (plan.max_draft_tokens or plan.starts)
        is_timed = not is_plain or self._num_plain % CONSTANTS.timing_interval == 1
        if not plan.chunks or (last is None and not is_timed):
            return None  # Even reading the clock would take time.
        started = self._clock()
        if last is not None and not plan.starts:  # Before a start the engine may have been idle.
            self.saved_seconds = self._learn_latency(last, started - last.started)
        planned = PlannedStep(plan.num_tokens, sum(chunk.samples for chunk in plan.chunks))
        follows_prompt, self._reads_prompt = self._reads_prompt, planned.num_tokens > len(plan.chunks)
        if not is_timed:
            return None
        for start in plan.starts:
            self._idle_until = 0
            self._sequences.start(start)
        is_representative = not (follows_prompt or self._reads_prompt)
        self._timed = _TimedStep(started, planned, is_representative, num_tokens=planned.num_tokens)
        if not plan.max_draft_tokens:
            return None
        drafts = self._propose(plan, self._timed, takes_tree)
        self.proposing_seconds = self._clock() - started
        return drafts

    def _cost_model_of(self, step: PlannedStep) -> SpeculationCostModel:
        size = max(1, step.num_sampled).bit_length()
        if size not in self._cost_models:
            self._cost_models[size] = self.cost_model.for_other_batches()
        return self._cost_models[size]

    def _propose(self, plan: Plan, timed: _TimedStep, takes_tree: TakesTree) -> list[Draft] | None:
        cost_model = self._cost_model_of(timed.planned)
        drafted = self.cost_model.drafter_passes.total
        best: dict[int, _Offer] = {}
        for method in self._sequences.methods_in_use(chunk.row for chunk in plan.chunks):
            indices = [index for index, chunk in enumerate(plan.chunks) if self._may_propose(method, chunk)]
            if indices:
                timed.considered.append(method.name)
            for offer in self._offered(method, plan, indices, takes_tree):
                other = best.get(offer.chunk_index)
                if other is None or cost_model.gain(offer.offer) > cost_model.gain(other.offer):
                    best[offer.chunk_index] = offer
                elif method.drafter is not None:
                    method.record_unverified(offer.request.row, self._step)
        offers = list(best.values())
        lengths = self._lengths(plan, timed.planned, offers)
        self._offers = self._cut(plan, offers, lengths, takes_tree)
        timed.drafted = [*{offer.method.name for offer in self._offers}]
        timed.drafting_seconds = self.cost_model.drafter_passes.total - drafted
        drafts = [NO_DRAFT] * len(plan.chunks)
        for index, draft in ((offer.chunk_index, offer.draft) for offer in self._offers):
            chunk, drafts[index] = plan.chunks[index], draft
            self._rows.write(chunk.row, chunk.start + chunk.length, draft.tokens)
            timed.num_tokens += len(draft)
        return drafts if self._offers else None

    def _may_propose(self, method: SpeculationMethod, chunk: Chunk) -> bool:
        if not chunk.max_draft_tokens or not self._sequences.may_use(method, chunk.row):
            return False
        if self._num_speculative_tokens is not None:
            return True
        # Only drafters draft in the step that computes a prompt: copies pay by what was generated.
        return (method.drafter is not None or chunk.length == 1) and self._is_due(method, chunk.row)

    def _is_due(self, method: SpeculationMethod, row: int) -> bool:
        """Whether a method may propose for a row: while its budget is overdrawn, only where its last draft gained."""
        state = method.rows[row]
        if not self._sequences.may_use(method, row):
            return False
        return state.until <= self._step and (state.has_gained or self.budgets[method.name] >= 0)

    def _offered(
        self, method: SpeculationMethod, plan: Plan, indices: Sequence[int], takes_tree: TakesTree
    ) -> list[_Offer]:
        """Return what a method offers for chunks of these indices. Rows for which it has nothing back off."""
        requests = [self._request(method, plan.chunks[index]) for index in indices]
        offers: list[_Offer] = []
        if method.drafter is not None:
            for index, request in zip(indices, requests, strict=True):
                offers.append(_Offer(method, index, request, self._future_offer(method, request), NO_DRAFT))
            return offers
        drafts = method.proposer.propose(requests) if requests else []
        for index, request, proposed in zip(indices, requests, drafts, strict=True):
            draft = proposed if proposed.is_chain or takes_tree(plan.chunks[index]) else proposed.main_chain()
            if len(draft):
                offers.append(_Offer(method, index, request, _offer_of(method, request.row, draft), draft))
            else:
                method.record_unverified(request.row, self._step)
        return offers

    def _request(self, method: SpeculationMethod, chunk: Chunk) -> DraftRequest:
        row, length = chunk.row, chunk.start + chunk.length
        self._feed(method, row, length)
        max_tokens = min(chunk.max_draft_tokens, method.max_draft_tokens)
        if self._num_speculative_tokens is not None:
            max_tokens = min(max_tokens, self._num_speculative_tokens * method.width)
        return DraftRequest(row, max_tokens, length)

    def _feed(self, method: SpeculationMethod, row: int, length: int) -> None:
        """Give a proposer the tokens of a row up to a length that it does not have yet."""
        state = method.rows[row]
        if not state.num_given:
            start, started = self._sequences.starts[row], self._clock()
            method.proposer.start(row, start.tokens, start.num_prompt_tokens, start.tenant)
            state.num_given = len(start.tokens)
            if self._timed is not None:
                self._timed.excluded_seconds += self._clock() - started
        if state.num_given < length:
            method.proposer.extend(row, self._rows.tokens[row, state.num_given : length].tolist())
            state.num_given = length

    def _future_offer(self, method: SpeculationMethod, request: DraftRequest) -> DraftOffer:
        """Return the offer of a draft that a drafter could propose."""
        drafter, (row, max_tokens, length) = method.drafter, request
        assert drafter is not None
        rate = method.acceptance_rate(row)
        max_depth = min(max_tokens // method.width, drafter.max_depth(length))
        probabilities = tuple(rate**depth for depth in range(1, max_depth + 1))
        # Computing a whole prompt is paid back over the answer, in steps that generate more than a token each.
        num_steps = max(1.0, self._sequences.num_left(row, length) / (1 + _expected_length(rate, 2)))
        num_uncomputed = 1 + (drafter.num_uncomputed(row, length) - 1) / num_steps
        is_trial = self._sequences.has_chosen(method, row) and method.counts.num_verified < CONSTANTS.num_trial_tokens
        return DraftOffer(probabilities, num_uncomputed, method.width, is_trial=is_trial)

    def _lengths(self, plan: Plan, planned: PlannedStep, offers: Sequence[_Offer]) -> list[int]:
        """Return how many depths of each offer are verified. Rows for which none pays back off."""
        if self._num_speculative_tokens is not None or not offers:
            return [len(offer.offer.probabilities) for offer in offers]
        expected = {offer.chunk_index: sum(offer.offer.probabilities) for offer in offers}
        values = self._sequences.token_values(plan, expected)
        valued = [offer.offer._replace(value=values[offer.chunk_index]) for offer in offers]
        lengths = self._cost_model_of(planned).choose_lengths(planned, valued)
        for offer, length in zip(offers, lengths, strict=True):
            if not length:
                offer.method.record_unverified(offer.request.row, self._step)
        return lengths

    def _cut(self, plan: Plan, offers: Sequence[_Offer], lengths: Sequence[int], takes_tree: TakesTree) -> list[_Offer]:
        """Return the offers that are taken, with their drafts cut, or proposed, to the chosen lengths."""
        taken: list[_Offer] = []
        drafted: dict[str, list[_Offer]] = {}
        for offer, length in zip(offers, lengths, strict=True):
            if length and offer.method.drafter is not None:
                request = offer.request._replace(max_tokens=length)
                drafted.setdefault(offer.method.name, []).append(offer._replace(request=request))
            elif length:
                draft = offer.draft if offer.method.all_or_nothing else offer.draft.truncated(length)
                taken.append(offer._replace(draft=draft))
        for group in drafted.values():
            drafts = group[0].method.proposer.propose([offer.request for offer in group])
            for offer, draft in zip(group, drafts, strict=True):
                is_possible = draft.is_chain or takes_tree(plan.chunks[offer.chunk_index])
                taken.append(offer._replace(draft=draft if is_possible else draft.main_chain()))
        return [offer for offer in taken if len(offer.draft)]

    # -- record -------------------------------------------------------------------------------------------------------

    def record(
        self, plan: Plan, tokens: Sequence[Sequence[int]], verified: Sequence[VerifiedTokens] | None = None
    ) -> None:
        """End a step that wrote these tokens for its chunks, and publish `max_draft_tokens` of the next one.

        `verified` has what became of each chunk and its draft, if there were drafts.
        """
        self._step += 1
        if self._timed is not None and self._timed.considered:
            self._timed.num_written = sum(map(len, tokens))
            self._num_plain, self._num_speculative = 0, self._num_speculative + 1
        else:
            self._num_plain += 1
            if self._step < self._idle_until:
                return
        rows = [chunk.row for chunk, drawn in zip(plan.chunks, tokens, strict=True) if drawn]
        if verified is not None:
            for offer in self._offers:
                row, result = offer.request.row, verified[offer.chunk_index]
                offer.method.proposer.observe(row, offer.draft, result.sampled)
                offer.method.record_verified(row, max(offer.draft.depths), len(result.path))
                self._sequences.record_accepted(row, len(result.path))
            assert self._timed is not None, "there were drafts"
            saved = self._sequences.take_saved_steps(rows, others_wait=plan.others_wait)
            self._book(self._timed.drafted, self._timed.planned, saved, 0.0)
        self.max_draft_tokens = self._published(plan, tokens)

    def _published(self, plan: Plan, tokens: Sequence[Sequence[int]]) -> int:
        """Return how many draft tokens chunks of the next step may have, after one that wrote these tokens."""
        methods = self._sequences.methods_in_use([chunk.row for chunk in plan.chunks])
        if self._num_speculative_tokens is not None:
            return self._most_draft_tokens(methods)
        num_steps, self._num_credited = self._step - self._num_credited, self._step
        self._credit([method.name for method in methods], CONSTANTS.share_in_vain * num_steps)
        for cost_model in self._cost_models.values():
            cost_model.record_steps(num_steps, num_steps, num_steps)
        if self._num_speculative >= CONSTANTS.plain_interval:
            return 0
        lengths = {
            chunk.row: chunk.start + chunk.length + len(drawn)
            for chunk, drawn in zip(plan.chunks, tokens, strict=True)
            if drawn
        }
        due = [method for method in methods if self._has_due(method, lengths)]
        if due or len(lengths) < len(plan.chunks):
            # A sequence whose prompt is being computed is new, and may be drafted for as soon as it has a token.
            return self._most_draft_tokens(due)
        share = CONSTANTS.share_in_vain / max(1, len(methods))
        credited = {method.name: self._step + ceil(-self.budgets[method.name] / share) for method in methods}
        self._idle_until = min(
            (max(method.rows[row].until, credited[method.name]) for method in methods for row in lengths), default=0
        )
        return 0

    def _has_due(self, method: SpeculationMethod, lengths: Mapping[int, int]) -> bool:
        """Whether a method should look at any row of these lengths. Rows without a hint wait for their next token.

        With many rows, each waits longer: hints are cheap, but not free.
        """
        if method.drafter is not None:
            return any(self._is_due(method, row) for row in lengths)
        has_due = False
        for row, length in lengths.items():
            if not self._is_due(method, row):
                continue
            state = method.rows[row]
            if state.backoff:
                self._feed(method, row, length)
                if not method.proposer.has_hint(row):
                    state.until = self._step + min(CONSTANTS.max_backoff, CONSTANTS.hint_interval * len(lengths))
                    continue
            has_due = True
        return has_due

    def _book(self, names: Sequence[str], planned: PlannedStep, saved: float, lost: float) -> None:
        """Book steps that methods saved and lost. With a fixed draft length nothing depends on it."""
        if self._num_speculative_tokens is None:
            self._credit(names, saved - lost)
            self._cost_model_of(planned).record_steps(0, saved, lost)

    def _credit(self, names: Sequence[str], steps: float) -> None:
        """Share steps among methods' budgets; they were lost if negative."""
        for name in names:
            balance = self.budgets[name] + steps / len(names)
            self.budgets[name] = max(-CONSTANTS.max_debt, min(CONSTANTS.max_budget, balance))

    def _most_draft_tokens(self, methods: Iterable[SpeculationMethod]) -> int:
        fixed = self._num_speculative_tokens
        return max(
            (
                method.max_draft_tokens if fixed is None else min(fixed * method.width, method.max_draft_tokens)
                for method in methods
            ),
            default=0,
        )

    def _learn_latency(self, last: _TimedStep, seconds: float) -> float:
        """Learn from the last step, and return the estimated seconds that its drafts saved."""
        cost_model, planned = self._cost_model_of(last.planned), last.planned
        if not last.considered:
            # A plain step after one with drafts finds the machine's caches full of other things.
            if last.is_representative and self._num_plain > 1:
                cost_model.plain.record(planned.num_tokens, seconds)
            if not last.is_representative or self._num_plain > 1:
                self._num_speculative = 0
            return 0.0
        if last.is_representative:
            latency = cost_model.drafter_steps if last.drafting_seconds else cost_model.speculative
            latency.record(last.num_tokens, seconds - last.drafting_seconds - last.excluded_seconds)
        if not planned.num_sampled or not cost_model:
            return 0.0
        num_lost = cost_model.extra_steps(planned, last.num_tokens, last.drafting_seconds)
        self._book(last.drafted or last.considered, planned, 0.0, num_lost)
        plain_seconds = cost_model.step_seconds(planned.num_sampled)
        return last.num_written * plain_seconds / planned.num_sampled - seconds


def _offer_of(method: SpeculationMethod, row: int, draft: Draft) -> DraftOffer:
    """Return the offer of a draft that exists."""
    rate = method.acceptance_rate(row)
    if method.all_or_nothing:
        return DraftOffer((_expected_length(rate, max(draft.depths)),), width=len(draft))
    return DraftOffer(draft.probabilities or tuple(rate**depth for depth in draft.depths))


def _expected_length(acceptance_rate: float, count: int) -> float:
    """Return the expected number of accepted tokens of a chain."""
    return float(sum(acceptance_rate**depth for depth in range(1, count + 1)))
