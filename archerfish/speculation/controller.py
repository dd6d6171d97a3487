"""The speculation controller: decides for each step whether drafts are proposed, and learns what became of them.

A step goes: `begin_step`, then `propose` and `record` if it may have drafts, then `end_step`, which publishes how many
draft tokens each chunk of the next step may have.
"""

from collections.abc import Mapping, Sequence
from copy import deepcopy

from archerfish.execution.step.rows import Rows
from archerfish.scheduling.plan import Plan
from archerfish.speculation.cost_model import SpeculationCostModel
from archerfish.speculation.draft import Draft
from archerfish.speculation.draft_selector import DraftSelector, SelectedDrafts, TakesTree
from archerfish.speculation.exploration_budget import ExplorationBudget
from archerfish.speculation.method import SpeculationMethod
from archerfish.speculation.speculated_rows import SpeculatedRows
from archerfish.speculation.step_timer import Clock, StepTimer

_MAX_IDLE_STEPS = 32
"""Steps without a look for hints, at most."""
_HINTED_TOKENS = 1.0
"""Draft tokens that are expected to be accepted where there is a hint."""
_NOTHING_SELECTED = SelectedDrafts([], [])


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
        """Methods, in the order in which they propose."""
        self.cost_model = SpeculationCostModel() if cost_model is None else cost_model
        self.budget = ExplorationBudget()
        self.max_draft_tokens = 0
        """Draft tokens that each chunk of the next step may have."""
        self.is_idle = False
        """Whether nothing needs to be done in the step that has begun."""
        self.seconds = 0.0
        """Seconds that the last `propose` took."""
        self._num_speculative_tokens = num_speculative_tokens
        self._rows = rows
        self._clock = clock
        self._timer = StepTimer(self.cost_model, self.budget, clock)
        self.sequences = SpeculatedRows(methods, default_method, rows, clock, self._timer.exclude)
        self._selector = DraftSelector(methods, self.sequences, self.cost_model, num_speculative_tokens)
        self._drafters = [method.drafter for method in methods if method.drafter is not None]
        self._in_use = self.sequences.default_methods
        """Methods that sequences of the last plan may use."""
        self._candidates: Sequence[SpeculationMethod] = ()
        """The subset that the cost model expects to be profitable in the next step."""
        self._selected = _NOTHING_SELECTED
        self._has_gained = False
        """Whether draft tokens were accepted in the last step."""
        self._step = 0
        """The number of the next step."""
        self._idle_until = 0
        """The step before which no method looks for hints."""
        self._overdrawn_until = 0
        """The step before which the budget does not allow a look, not even for new sequences."""
        self._num_credited = 0
        """Steps that were credited to the budget."""
        self._others_wait = False
        """Whether requests waited for a free row when the last step was planned."""
        self._drafting_seconds = 0.0
        """Seconds of drafter passes in the last `propose`."""
        self._publish({}, num_chunks=1)

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
        self._publish({}, num_chunks=1)

    # -- a step -------------------------------------------------------------------------------------------------------

    def begin_step(self, plan: Plan) -> float:
        """Begin a step, and return the estimated seconds that drafts of the last one saved; negative if they cost."""
        for drafter in self._drafters:
            drafter.begin_step(plan)
        self._others_wait = plan.others_wait
        self.is_idle = not (plan.starts or plan.max_draft_tokens or self._timer.is_running) and (
            self._step < self._idle_until or not self._timer.times_plain(plan.num_tokens)
        )
        if self.is_idle:
            self._timer.skip()
            return 0.0
        if plan.starts:
            self._idle_until = self._overdrawn_until
        saved = self._timer.begin_step(plan)
        for start in plan.starts:
            self.sequences.start(start)
        self._in_use = self.sequences.methods_in_use(chunk.row for chunk in plan.chunks)
        return saved

    @property
    def is_speculative(self) -> bool:
        """Whether the step that has begun may have drafts."""
        return not self.is_idle and self._timer.is_speculative

    def propose(self, plan: Plan, takes_tree: TakesTree) -> list[Draft] | None:
        """Return the draft of each chunk and write it to the row; None if there are no drafts."""
        started, drafted = self._clock(), self.cost_model.drafter_passes.total
        methods = self._candidates_of(plan) if self._num_speculative_tokens is None else self._in_use
        self._selected = self._selector.select(methods, plan, self._step, takes_tree)
        drafts = self._selected.drafts
        for chunk, draft in zip(plan.chunks, drafts, strict=True):
            if len(draft):
                self._rows.write(chunk.row, chunk.start + chunk.length, draft.tokens)
        self.seconds = self._clock() - started
        self._drafting_seconds = self.cost_model.drafter_passes.total - drafted
        if any(map(len, drafts)):
            return drafts
        self._has_gained = False
        self._update_idle(plan)
        return None

    def _candidates_of(self, plan: Plan) -> Sequence[SpeculationMethod]:
        """Return the candidates, without those that cannot pay now that other sequences have started."""
        if not plan.starts:
            return self._candidates
        lengths = {
            chunk.row: chunk.start + chunk.length for chunk in plan.chunks if chunk.samples and chunk.length == 1
        }
        return [
            method for method in self._candidates if self._could_pay(method, len(plan.chunks), lengths, list(lengths))
        ]

    def record(self, plan: Plan, sampled: Sequence[Sequence[int]], num_accepted: Sequence[int]) -> None:
        """Record what was sampled after each chunk and each node of its draft, and how many nodes were accepted."""
        self._has_gained = any(num_accepted)
        for index, (chunk, draft, method) in enumerate(zip(plan.chunks, *self._selected, strict=True)):
            if method is not None:
                method.proposer.observe(chunk.row, draft, sampled[index])
                method.acceptance.record(chunk.row, max(draft.depths), num_accepted[index])
                if self._num_speculative_tokens is None:
                    method.backoff.record(chunk.row, succeeded=num_accepted[index] > 0)
                    method.expected_drafts.record(chunk.row)
        num_sampled = sum(chunk.samples for chunk in plan.chunks)
        if self._others_wait or num_sampled == 1:
            self.budget.credit(sum(num_accepted) / num_sampled)
        self._update_idle(plan)

    def record_step(self, num_tokens: int, num_written: int) -> None:
        """Record the step's tokens, draft tokens included, and those that it wrote."""
        is_charged = self._num_speculative_tokens is None
        self._timer.record_drafts(num_tokens, num_written, self._drafting_seconds, is_charged=is_charged)

    def end_step(self, plan: Plan, tokens: Sequence[Sequence[int]]) -> None:
        """End a step that sampled these tokens for its chunks, and publish `max_draft_tokens` of the next one."""
        self._step += 1
        if self._num_speculative_tokens is None and self._step < self._idle_until:
            self.max_draft_tokens = 0
            return
        lengths = {
            chunk.row: chunk.start + chunk.length + len(drawn)
            for chunk, drawn in zip(plan.chunks, tokens, strict=True)
            if drawn
        }
        self._publish(lengths, len(plan.chunks))

    # -- the next step ------------------------------------------------------------------------------------------------

    def _publish(self, lengths: Mapping[int, int], num_chunks: int) -> None:
        """Set the draft tokens that chunks of the next step may have, given its sequences' lengths by row."""
        if self._num_speculative_tokens is not None:
            counts = [
                min(self._num_speculative_tokens * method.width, method.max_draft_tokens) for method in self._in_use
            ]
            self.max_draft_tokens = max(counts, default=0)
            return
        if self._timer.wants_plain:
            self.max_draft_tokens = 0
            return
        if self._has_gained and num_chunks == 1:
            # How many tokens pay is seen when there is a draft: no need to look before whether any could.
            for method in self._candidates:
                method.backoff.begin_step(self._step)
        else:
            running = {row: length for row, length in lengths.items() if self.sequences.num_left(row, length) > 0}
            self._look(running, num_chunks)
        self.max_draft_tokens = max((method.max_draft_tokens for method in self._candidates), default=0)

    def _look(self, lengths: Mapping[int, int], num_chunks: int) -> None:
        """Choose the methods that propose in the next step."""
        self._candidates, self._has_gained = (), False
        started = self._clock()
        hinted = []
        for method in self._in_use:
            method.backoff.begin_step(self._step)
            if not method.backoff.is_idle and (rows := self._hinted(method, lengths)) is not None:
                hinted.append((method, rows))
        if hinted or self._step >= self._num_credited + _MAX_IDLE_STEPS:
            self._credit(lengths)
            if wait := self.budget.steps_to_wait():
                self._idle_until = self._overdrawn_until = self._step + min(wait, _MAX_IDLE_STEPS)
                return
            self._candidates = [method for method, rows in hinted if self._may_pay(method, num_chunks, lengths, rows)]
        if not self._candidates:
            self._idle_until = min((method.backoff.idle_until for method in self._in_use), default=0)
        self._timer.record_lookup(self._clock() - started, num_chunks, in_vain=not self._candidates)

    def _hinted(self, method: SpeculationMethod, lengths: Mapping[int, int]) -> list[int] | None:
        """Return the rows that a method may draft for; None if there are none. Those without a hint back off."""
        if method.drafter is not None:
            return list(lengths)
        rows = []
        for row, length in lengths.items():
            if not method.backoff.may_propose(row) or not self.sequences.may_use(method, row):
                continue
            if method.backoff.needs_hint(row):
                self.sequences.feed(method, row, length)
                if not method.proposer.has_hint(row):
                    method.backoff.record_no_hint(row, len(lengths))
                    continue
            rows.append(row)
        if not rows:
            method.backoff.update_idle(lengths)
            return None
        return rows

    def _may_pay(
        self, method: SpeculationMethod, num_chunks: int, lengths: Mapping[int, int], hinted: Sequence[int]
    ) -> bool:
        """Whether drafts for the rows with a hint could pay, or should be tried. If not, the method pauses."""
        if self._could_pay(method, num_chunks, lengths, hinted) or self.cost_model.record_refusal(num_chunks):
            return True
        method.acceptance.decay(method.acceptance.rows)
        method.backoff.pause(is_brief=len(hinted) < len(lengths))
        return False

    def _could_pay(
        self, method: SpeculationMethod, num_chunks: int, lengths: Mapping[int, int], hinted: Sequence[int]
    ) -> bool:
        expected = dict.fromkeys(hinted, _HINTED_TOKENS)
        values = self.sequences.token_values(lengths, expected, self._step, others_wait=self._others_wait)
        hinted_values = [values[row] for row in hinted] or [1.0]  # A drafter drafts what follows prompts, too.
        is_drafted = method.drafter is not None
        return self.cost_model.may_pay(num_chunks, hinted_values, method.max_acceptance, is_drafted=is_drafted)

    def _credit(self, lengths: Mapping[int, int]) -> None:
        """Credit to the budget the steps since the last time, and what drafts saved of them."""
        self.budget.pass_steps(self._step - self._num_credited)
        self._num_credited = self._step
        saved = self.sequences.take_saved_steps(lengths, self._step)
        if not self._others_wait and len(lengths) > 1:  # Otherwise every token counts, and was counted.
            self.budget.credit(saved)
        self.cost_model.token_price = self.budget.token_price

    def _update_idle(self, plan: Plan) -> None:
        rows = [chunk.row for chunk in plan.chunks if chunk.max_draft_tokens]
        for method in self._in_use:
            method.backoff.update_idle(rows)
