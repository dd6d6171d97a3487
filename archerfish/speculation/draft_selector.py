"""Selects the drafts of a step: which method drafts for which sequence, and how many tokens are verified."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from archerfish.scheduling.plan import Chunk, Plan
from archerfish.speculation.cost_model import DraftOffer, PlannedStep, SpeculationCostModel
from archerfish.speculation.draft import NO_DRAFT, Draft
from archerfish.speculation.drafters.model_proposer import ModelProposer
from archerfish.speculation.method import SpeculationMethod
from archerfish.speculation.proposer import DraftRequest
from archerfish.speculation.speculated_rows import SpeculatedRows

TakesTree = Callable[[Chunk], bool]
"""Whether the draft after a chunk may be a tree."""


class _Offer(NamedTuple):
    """The offer of one method for one chunk."""

    method: SpeculationMethod
    chunk_index: int
    """The chunk's index in its plan."""
    offer: DraftOffer
    draft: Draft
    """NO_DRAFT where a drafter has yet to propose it."""


class SelectedDrafts(NamedTuple):
    """The draft of each chunk of a plan, which may be empty, and the method that proposed it."""

    drafts: list[Draft]
    methods: list[SpeculationMethod | None]


class DraftSelector:
    """Collects offers of methods, takes the best for each chunk, and cuts it to the length that pays."""

    def __init__(
        self,
        methods: Sequence[SpeculationMethod],
        sequences: SpeculatedRows,
        cost_model: SpeculationCostModel,
        num_speculative_tokens: int | None,
    ) -> None:
        """Drafts always have `num_speculative_tokens` tokens; None takes as many as pay."""
        self._methods = methods
        self._sequences = sequences
        self._cost_model = cost_model
        self._num_speculative_tokens = num_speculative_tokens

    def select(
        self, methods: Sequence[SpeculationMethod], plan: Plan, step: int, takes_tree: TakesTree
    ) -> SelectedDrafts:
        """Return the drafts of a step by some of the methods."""
        indices = [index for index, chunk in enumerate(plan.chunks) if chunk.max_draft_tokens]
        offers = self._best([offer for method in methods for offer in self._offers(method, plan, indices, takes_tree)])
        selected = SelectedDrafts([NO_DRAFT] * len(plan.chunks), [None] * len(plan.chunks))
        for offer, draft in zip(offers, self._drafts(plan, offers, step, takes_tree), strict=True):
            if len(draft):
                selected.drafts[offer.chunk_index] = draft
                selected.methods[offer.chunk_index] = offer.method
        return selected

    # -- offers -------------------------------------------------------------------------------------------------------

    def _offers(self, method: SpeculationMethod, plan: Plan, indices: list[int], takes_tree: TakesTree) -> list[_Offer]:
        indices = [index for index in indices if self._may_propose(method, plan.chunks[index])]
        requests = [self._request(method, plan.chunks[index]) for index in indices]
        if method.drafter is not None:
            return [
                _Offer(method, index, self._future_offer(method, method.drafter, request), NO_DRAFT)
                for index, request in zip(indices, requests, strict=True)
            ]
        offers = []
        drafts = method.proposer.propose(requests) if requests else ()
        for index, request, proposed in zip(indices, requests, drafts, strict=True):
            draft = proposed if proposed.is_chain or takes_tree(plan.chunks[index]) else proposed.main_chain()
            if len(draft):
                offers.append(_Offer(method, index, self._offer(method, request, draft), draft))
            else:
                method.backoff.record(request.row, succeeded=False)
        return offers

    def _may_propose(self, method: SpeculationMethod, chunk: Chunk) -> bool:
        if not self._sequences.may_use(method, chunk.row):
            return False
        if self._num_speculative_tokens is not None:
            return True
        # Only drafters draft in the step that computes a prompt: copies pay by what was generated.
        return (method.drafter is not None or chunk.length == 1) and method.backoff.may_propose(chunk.row)

    def _request(self, method: SpeculationMethod, chunk: Chunk) -> DraftRequest:
        row, length = chunk.row, chunk.start + chunk.length
        self._sequences.feed(method, row, length)
        max_tokens = min(chunk.max_draft_tokens, method.max_draft_tokens)
        if self._num_speculative_tokens is not None:
            max_tokens = min(max_tokens, self._num_speculative_tokens * method.width)
        return DraftRequest(row, max_tokens, length)

    def _offer(self, method: SpeculationMethod, request: DraftRequest, draft: Draft) -> DraftOffer:
        """Return the offer of a draft that exists."""
        rate = method.acceptance.of(request.row)
        if method.all_or_nothing:
            return DraftOffer((_expected_length(rate, max(draft.depths)),), width=len(draft))
        return DraftOffer(draft.probabilities or tuple(rate**depth for depth in draft.depths))

    def _future_offer(self, method: SpeculationMethod, drafter: ModelProposer, request: DraftRequest) -> DraftOffer:
        """Return the offer of a draft that a drafter could propose."""
        row, length = request.row, request.length
        rate, width = method.acceptance.of(row), method.width
        max_depth = min(request.max_tokens // width, drafter.max_depth(length))
        probabilities = tuple(rate**depth for depth in range(1, max_depth + 1))
        num_uncomputed = drafter.num_uncomputed(row, length)
        # Computing a whole prompt is paid back over the answer, in steps that generate more than a token each: over as
        # many of them as other methods leave to the drafter.
        num_steps = self._sequences.num_left(row, length) / (1 + _expected_length(rate, 2))
        num_steps = min(num_steps, method.expected_drafts.expected(row))
        return DraftOffer(probabilities, 1 + (num_uncomputed - 1) / max(1.0, num_steps), width)

    def _best(self, offers: list[_Offer]) -> list[_Offer]:
        """Return one offer for each chunk: of several methods the one that gains most by itself."""
        best: dict[int, _Offer] = {}
        for offer in offers:
            other = best.get(offer.chunk_index)
            if other is None or self._cost_model.gain(offer.offer) > self._cost_model.gain(other.offer):
                best[offer.chunk_index] = offer
        return list(best.values())

    # -- drafts -------------------------------------------------------------------------------------------------------

    def _drafts(self, plan: Plan, offers: list[_Offer], step: int, takes_tree: TakesTree) -> list[Draft]:
        """Return the draft of each offer, cut or proposed to its chosen length."""
        lengths = self._lengths(plan, offers, step)
        drafts = [
            offer.draft if offer.method.all_or_nothing and length else offer.draft.truncated(length)
            for offer, length in zip(offers, lengths, strict=True)
        ]
        requests: dict[str, list[tuple[int, DraftRequest]]] = {}
        for number, (offer, length) in enumerate(zip(offers, lengths, strict=True)):
            chunk = plan.chunks[offer.chunk_index]
            if offer.method.drafter is not None and length:
                request = DraftRequest(chunk.row, length, chunk.start + chunk.length)
                requests.setdefault(offer.method.name, []).append((number, request))
            elif not length:
                offer.method.backoff.record(chunk.row, succeeded=False)
        for numbered in requests.values():
            proposer = offers[numbered[0][0]].method.proposer
            for (number, _), draft in zip(
                numbered, proposer.propose([request for _, request in numbered]), strict=True
            ):
                is_taken = draft.is_chain or takes_tree(plan.chunks[offers[number].chunk_index])
                drafts[number] = draft if is_taken else draft.main_chain()
        return drafts

    def _lengths(self, plan: Plan, offers: list[_Offer], step: int) -> list[int]:
        """Return how many depths of each offer are taken."""
        if self._num_speculative_tokens is not None or not offers:
            return [len(offer.offer.probabilities) for offer in offers]
        sampling = {chunk.row: chunk.start + chunk.length for chunk in plan.chunks if chunk.samples}
        expected = {plan.chunks[offer.chunk_index].row: sum(offer.offer.probabilities) for offer in offers}
        values = self._sequences.token_values(sampling, expected, step, others_wait=plan.others_wait)
        valued = [offer.offer._replace(value=values[plan.chunks[offer.chunk_index].row]) for offer in offers]
        lengths = self._cost_model.choose_lengths(PlannedStep(plan.num_tokens, len(sampling)), valued)
        unused: dict[str, list[int]] = {}
        for offer, length in zip(offers, lengths, strict=True):
            if not length:
                unused.setdefault(offer.method.name, []).append(plan.chunks[offer.chunk_index].row)
        for method in self._methods:
            if method.name in unused:
                method.acceptance.decay(unused[method.name])
        return lengths


def _expected_length(acceptance_rate: float, count: int) -> float:
    """Return the expected number of accepted tokens of a chain."""
    return float(sum(acceptance_rate**depth for depth in range(1, count + 1)))
