"""Guesses for the sequences of a step: who makes them, how many are taken, and what becomes of them.

Knows plans and rows; not how guesses are made, nor how tokens are drawn.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from copy import deepcopy
from typing import NamedTuple

from archerfish.execution.step.rows import Rows
from archerfish.scheduling.plan import Chunk, Plan, SequenceStart
from archerfish.speculation.batch_progress import Progress, worths
from archerfish.speculation.cost_model import Lengths, Offer, Step
from archerfish.speculation.draft import NO_DRAFT, Draft
from archerfish.speculation.drafters.model_proposer import NetworkProposer
from archerfish.speculation.exploration_budget import Account
from archerfish.speculation.method import Way
from archerfish.speculation.proposer import Ask
from archerfish.speculation.step_timer import Clock, Stopwatch

TakesTree = Callable[[Chunk], bool]

_LONGEST_QUIET = 32
"""Steps: one without guesses is to be timed now and then."""
_HINTED = 1.0
"""Guesses that may stand where there is a hint."""
_FIRST_ANSWER = 64.0
"""Tokens that an answer has, before any was seen."""
_LENGTH_MEMORY = 0.9


class _Offered(NamedTuple):
    """What one way has for one chunk."""

    way: Way
    place: int
    """Of the chunk in its plan."""
    offer: Offer
    draft: Draft
    """NO_DRAFT where it is yet to be made."""


class Speculator:
    def __init__(
        self,
        ways: Sequence[Way],
        method: str,
        rows: Rows,
        clock: Clock,
        fixed: int | None = None,
        lengths: Lengths | None = None,
    ) -> None:
        """The method is that of requests which name none: one of the ways, or auto.

        `fixed` guesses are checked wherever there are so many; without it, as many as pay, by what `lengths` knows.
        """
        self.ways = ways
        """In the order in which they are asked."""
        self.method = method
        self.fixed = fixed
        self.lengths = Lengths() if lengths is None else lengths
        self._progress = Progress()
        self._account = Account()
        self._stopwatch = Stopwatch(self.lengths, self._account, clock)
        self._rows = rows
        self._clock = clock
        self._starts: dict[int, SequenceStart] = {}
        self._chosen: dict[int, str] = {}
        """The method of rows that have another than most."""
        self._in_use: Sequence[Way] = ()
        """By the rows of the last plan."""
        self._asked: Sequence[Way] = ()
        """Those of them that may pay."""
        self._told: dict[int, dict[str, int]] = {}
        """Of each row, how many tokens each way knows. It is told of a row only when it is first asked."""
        self._used: list[Way | None] = []
        """For each chunk of the last step."""
        self._has_gained = False
        """The last step wrote tokens that were guessed."""
        self._step = self._quiet_until = 0
        """Plans that were made, and the one before which nobody need be asked."""
        self._overdrawn_until = 0
        """The one before which nobody may be asked."""
        self.is_quiet = False
        """Nobody is asked in the step that is planned: unless something new begins, it is no concern of theirs."""
        self._accounted = 0
        """The step up to which the account has the time that passed."""
        self._do_others_wait = False
        """For the first place that becomes free."""
        self._usual_method = ""
        self._usual: Sequence[Way] = ()
        """Ways of rows that chose no other."""
        self._networks: list[NetworkProposer] = []
        self._mean_answer = _FIRST_ANSWER
        self.seconds = 0.0
        """That the last guessing took."""
        self._drafting = 0.0
        """The part of it that a network took."""

    def anew(self, method: str, fixed: int | None = None) -> "Speculator":
        """Another one of the same ways, which knows what this one does and learns for itself: for whoever measures one
        against the other, by turns."""
        lengths = deepcopy(self.lengths)
        ways = [way.anew(lengths.drafting) for way in self.ways]
        return Speculator(ways, method, self._rows, self._clock, fixed, lengths)

    def skips(self) -> bool:
        """Whether nobody is asked in the next step, whatever it has."""
        self._step += 1
        skips = self._step < self._quiet_until
        if skips:
            self._be_quiet()
        return skips

    def most(self, chunks: Collection[Chunk], starts: Collection[SequenceStart], room: int, others_wait: bool) -> int:
        """How many guesses each sequence of a step should have, out of the room there is: none where none could pay.

        Rows have their tokens, but for those that begin.
        """
        if not room:
            self._be_quiet()
            return 0
        self.is_quiet, self._do_others_wait = False, others_wait
        if self.fixed is not None:
            ways = self._in_use or self._ways_of(self.method)
            return max((min(self.fixed * way.width, way.most) for way in ways), default=0)
        if self._stopwatch.wants_plain:
            return 0
        if self._has_gained and len(chunks) == 1 and not starts:
            # How many guesses pay is seen when there are some: it need not be asked before whether any could.
            for way in self._asked:
                way.rests.begin(self._step)
        else:
            self._look(chunks, {start.row for start in starts})
        if not self._asked and not self._stopwatch.times(sum(chunk.length for chunk in chunks)):
            self._be_quiet()
        return max((way.most for way in self._asked), default=0)

    def _look(self, chunks: Collection[Chunk], new: Collection[int]) -> None:
        """Who is asked for guesses."""
        self._asked, self._has_gained = (), False
        began, ways = self._clock(), self._in_use or self._ways_of(self.method)
        known = [chunk for chunk in chunks if chunk.samples and chunk.length == 1 and chunk.row not in new]
        hinted = [
            (way, found)
            for way in ways
            if way.rests.begin(self._step) and (found := self._hinted(way, known)) is not None
        ]
        if hinted or self._step >= self._accounted + _LONGEST_QUIET:
            self._settle_account(known)
            if wait := self._account.wait():
                self._quiet_until = self._overdrawn_until = self._step + min(wait, _LONGEST_QUIET)
                return
            self._asked = [way for way, found in hinted if self._may_pay(way, len(chunks), known, found)]
        if not self._asked:
            self._quiet_until = min((way.rests.quiet_until for way in ways), default=0)
        self._stopwatch.looked(self._clock() - began, len(chunks), in_vain=not self._asked)

    def _settle_account(self, chunks: Sequence[Chunk]) -> None:
        """What came of the steps since it was last done."""
        self._account.passed(self._step - self._accounted)
        self._accounted = self._step
        saved = self._progress.saved({chunk.row: self._num_written(chunk) for chunk in chunks}, self._step)
        if not self._do_others_wait and len(chunks) > 1:  # Otherwise every token counts, and was counted.
            self._account.saved(saved)
        self.lengths.price = self._account.price

    def _num_written(self, chunk: Chunk) -> int:
        return chunk.start + chunk.length - len(self._starts[chunk.row].tokens)

    def _be_quiet(self) -> None:
        """Unless a step is being timed."""
        self.is_quiet = not self._stopwatch.is_running
        if self.is_quiet:
            self._stopwatch.pass_by()

    def _may_pay(self, way: Way, num_drawn: int, known: Sequence[Chunk], hinted: Sequence[Chunk]) -> bool:
        """Whether guesses for those that may be asked could."""
        worth = self._worths(known, dict.fromkeys((chunk.row for chunk in hinted), _HINTED))
        worth_hinted = [worth[chunk.row] for chunk in hinted] or [1.0]  # A network guesses what follows prompts, too.
        if self.lengths.may_pay(num_drawn, worth_hinted, way.surest, is_drafted=way.network is not None):
            return True
        way.trust.pass_by(way.trust.rows)
        way.rests.pause(is_brief=len(hinted) < len(known))
        return False

    def _worths(self, chunks: Sequence[Chunk], expected: Mapping[int, float]) -> dict[int, float]:
        """By row, what a token more is worth, if so many guesses will probably stand in this step."""
        if self._do_others_wait or len(chunks) <= 1:
            return {chunk.row: 1.0 for chunk in chunks}
        left = {chunk.row: self._num_left(chunk.row, chunk.start + chunk.length) for chunk in chunks}
        speeds = {}
        for chunk in chunks:
            row, speed = chunk.row, self._progress.speed(chunk.row, self._num_written(chunk), self._step)
            speeds[row] = max(1 + expected.get(row, 0.0), speed)
        return worths(left, speeds)

    def _hinted(self, way: Way, chunks: Sequence[Chunk]) -> Sequence[Chunk] | None:
        """Those that may be asked; None if nobody. Cold ones without a hint doze."""
        if way.network is not None:
            return chunks
        found = []
        for chunk in chunks:
            row = chunk.row
            if not way.rests.is_awake(row) or not self._may_use(way, row):
                continue
            if way.rests.is_cold(row):
                self._tell(way, row, chunk.start + 1)
                if not way.proposer.hints(row):
                    way.rests.doze(row, len(chunks))
                    continue
            found.append(chunk)
        if not found:
            way.rests.settle([chunk.row for chunk in chunks])
            return None
        return found

    def take_in(self, plan: Plan) -> float:
        """What is new since the last step. What guesses of that one saved, in seconds, or less than nothing."""
        if self.method != self._usual_method:
            self._learn_method()
        for network in self._networks:
            network.take_in(plan)
        if self.is_quiet and not plan.starts:
            return 0.0
        self.is_quiet = False
        if plan.starts:
            self._quiet_until = self._overdrawn_until
        saved = self._stopwatch.begin(plan)
        for start in plan.starts:
            self._start(start)
        self._in_use = self._usual
        if self._chosen:
            methods = {self._chosen.get(chunk.row, self.method) for chunk in plan.chunks}
            self._in_use = [way for way in self.ways if any(way in self._ways_of(method) for method in methods)]
        return saved

    def _learn_method(self) -> None:
        self._usual_method, self._usual = self.method, self._ways_of(self.method)
        self._networks = [way.network for way in self.ways if way.network is not None]

    def _ways_of(self, method: str) -> Sequence[Way]:
        if method == "auto":
            return [way for way in self.ways if not way.as_a_whole]
        return [way for way in self.ways if way.name == method]

    def try_out(self) -> None:
        """Before there is anything to do: see how long it takes to guess."""
        for way in self.ways:
            if way.network is not None:
                way.network.try_out()

    def _start(self, start: SequenceStart) -> None:
        before = self._starts.get(start.row)
        if before is not None:
            length = max(self._told[start.row].values(), default=0) - before.num_prompt_tokens
            if length > 0:
                self._mean_answer += (1 - _LENGTH_MEMORY) * (length - self._mean_answer)
        self._starts[start.row] = start
        self._told[start.row] = {}
        self._progress.start(start.row)
        asked = start.params.speculation
        self._chosen.pop(start.row, None)
        if asked is not None and asked.method not in (None, self.method):
            self._chosen[start.row] = asked.method
        for way in self.ways:
            way.trust.start(start.row)
            way.rests.start(start.row)
            way.uses.start(start.row)

    @property
    def is_asked(self) -> bool:
        """Whether the plan that was taken in has room for guesses."""
        return self._stopwatch.is_asked

    def guess(self, plan: Plan, takes_tree: TakesTree) -> list[Draft] | None:
        """For each chunk of a plan; None where nothing is guessed. The guesses are then on the rows."""
        started, drafted = self._clock(), self.lengths.drafting.total
        places = [place for place, chunk in enumerate(plan.chunks) if chunk.max_draft_tokens]
        ways = self._in_use if self.fixed is not None else self._asked
        offered = self._best([one for way in ways for one in self._offers(way, plan, places, takes_tree)])
        drafts = [NO_DRAFT] * len(plan.chunks)
        self._used = [None] * len(plan.chunks)
        for one, draft in zip(offered, self._drafts(plan, offered, takes_tree), strict=True):
            if len(draft):
                drafts[one.place] = draft
                self._used[one.place] = one.way
        for chunk, draft in zip(plan.chunks, drafts, strict=True):
            if len(draft):
                self._rows.write(chunk.row, chunk.start + chunk.length, draft.tokens)
        self.seconds = self._clock() - started
        self._drafting = self.lengths.drafting.total - drafted
        found = any(map(len, drafts))
        if not found:
            self._has_gained = False
            self._settle_rests(plan)
        return drafts if found else None

    def settle(self, plan: Plan, drafts: list[Draft], drawn: list[list[int]], stood: list[int]) -> None:
        """What was drawn after each chunk's last token and after each of its guesses, and how many of these stood."""
        self._has_gained = any(stood)
        for place, (chunk, way) in enumerate(zip(plan.chunks, self._used, strict=True)):
            if way is not None:
                way.proposer.saw(chunk.row, drafts[place], drawn[place])
                way.trust.checked(chunk.row, max(drafts[place].depths), stood[place])
                if self.fixed is None:
                    way.rests.went(chunk.row, gained=stood[place] > 0)
                    way.uses.used(chunk.row)
        num_drawn = sum(chunk.samples for chunk in plan.chunks)
        if self._do_others_wait or num_drawn == 1:
            self._account.saved(sum(stood) / num_drawn)
        self._settle_rests(plan)

    def took(self, num_tokens: int, num_written: int) -> None:
        """What the step came to with its guesses."""
        self._stopwatch.came_to(num_tokens, num_written, self._drafting, is_charged=self.fixed is None)

    def _settle_rests(self, plan: Plan) -> None:
        rows = [chunk.row for chunk in plan.chunks if chunk.max_draft_tokens]
        for way in self._in_use:
            way.rests.settle(rows)

    # -- what could be checked -----------------------------------------------------------------------------------------

    def _offers(self, way: Way, plan: Plan, places: list[int], takes_tree: TakesTree) -> list[_Offered]:
        places = [place for place in places if self._may_use(way, plan.chunks[place].row)]
        if self.fixed is None:
            places = [place for place in places if way.rests.is_awake(plan.chunks[place].row)]
        asks = [self._ask(way, plan.chunks[place]) for place in places]
        if way.network is not None:
            return [
                _Offered(way, place, self._promised(way, way.network, ask), NO_DRAFT)
                for place, ask in zip(places, asks, strict=True)
            ]
        found = []
        for place, ask, made in zip(places, asks, way.proposer.propose(asks) if asks else (), strict=True):
            draft = made if made.is_chain or takes_tree(plan.chunks[place]) else made.first_line()
            if len(draft):
                found.append(_Offered(way, place, self._known(way, ask, draft), draft))
            else:
                way.rests.went(ask.row, gained=False)
        return found

    def _may_use(self, way: Way, row: int) -> bool:
        """Whether the row chose this way, or chose nothing."""
        return not self._chosen or way in self._ways_of(self._chosen.get(row, self.method))

    def _ask(self, way: Way, chunk: Chunk) -> Ask:
        row, end = chunk.row, chunk.start + chunk.length
        self._tell(way, row, end)
        most = min(chunk.max_draft_tokens, way.most)
        if self.fixed is not None:
            most = min(most, self.fixed * way.width)
        return Ask(row, most, end)

    def _tell(self, way: Way, row: int, end: int) -> None:
        """What was written to the row since it was told last."""
        known = self._told[row]
        told = known.get(way.name)
        if told is None:
            start, began = self._starts[row], self._clock()
            way.proposer.start(row, start.tokens, start.num_prompt_tokens, start.tenant)
            told = len(start.tokens)
            self._stopwatch.leave_out(self._clock() - began)
        if told < end:
            way.proposer.extend(row, self._rows.tokens[row, told:end].tolist())
        known[way.name] = end

    def _known(self, way: Way, ask: Ask, draft: Draft) -> Offer:
        trust = way.trust.of(ask.row)
        if way.as_a_whole:
            return Offer((_sum_of_powers(trust, max(draft.depths)),), width=len(draft))
        return Offer(draft.chances or tuple(trust**depth for depth in draft.depths))

    def _promised(self, way: Way, network: NetworkProposer, ask: Ask) -> Offer:
        trust, width = way.trust.of(ask.row), way.width
        depth = min(ask.most // width, network.room(ask.end))
        chances = tuple(trust**one for one in range(1, depth + 1))
        unread = network.num_unread(ask.row, ask.end)
        # Reading a whole prompt is paid back over the answer, in steps that bring more than a token each; over as many
        # of them as others leave to the network.
        num_steps = min(self._num_left(ask.row, ask.end) / (1 + _sum_of_powers(trust, 2)), way.uses.expected(ask.row))
        return Offer(chances, 1 + (unread - 1) / max(1.0, num_steps), width)

    def _num_left(self, row: int, end: int) -> float:
        """Tokens that are probably still to come: as many as answers have, but for what was asked for."""
        start = self._starts[row]
        limit = start.params.max_tokens
        left = self._mean_answer if limit is None else limit - (end - start.num_prompt_tokens)
        return min(left, self._mean_answer)

    def _best(self, offered: list[_Offered]) -> list[_Offered]:
        """One for each chunk: of several ways the one that saves most by itself."""
        best: dict[int, _Offered] = {}
        for one in offered:
            other = best.get(one.place)
            if other is None or self.lengths.gain(one.offer) > self.lengths.gain(other.offer):
                best[one.place] = one
        return list(best.values())

    # -- what is checked -----------------------------------------------------------------------------------------------

    def _drafts(self, plan: Plan, offered: list[_Offered], takes_tree: TakesTree) -> list[Draft]:
        counts = self._counts(plan, offered)
        drafts = [
            one.draft if one.way.as_a_whole and count else one.draft.first(count)
            for one, count in zip(offered, counts, strict=True)
        ]
        asks: dict[str, list[tuple[int, Ask]]] = {}
        for number, (one, count) in enumerate(zip(offered, counts, strict=True)):
            chunk = plan.chunks[one.place]
            if one.way.network is not None and count:
                ask = Ask(chunk.row, count, chunk.start + chunk.length)
                asks.setdefault(one.way.name, []).append((number, ask))
            elif not count:
                one.way.rests.went(chunk.row, gained=False)
        for of_way in asks.values():
            way = offered[of_way[0][0]].way
            for (number, _), draft in zip(of_way, way.proposer.propose([ask for _, ask in of_way]), strict=True):
                is_taken = draft.is_chain or takes_tree(plan.chunks[offered[number].place])
                drafts[number] = draft if is_taken else draft.first_line()
        return drafts

    def _counts(self, plan: Plan, offered: list[_Offered]) -> list[int]:
        """How many steps along each offer are taken."""
        if self.fixed is not None or not offered:
            return [len(one.offer.chances) for one in offered]
        num_drawn = sum(chunk.samples for chunk in plan.chunks)
        expected = {plan.chunks[one.place].row: sum(one.offer.chances) for one in offered}
        worth = self._worths([chunk for chunk in plan.chunks if chunk.samples], expected)
        offers = [one.offer._replace(worth=worth[plan.chunks[one.place].row]) for one in offered]
        counts = self.lengths.choose(Step(plan.num_tokens, num_drawn), offers)
        passed: dict[str, list[int]] = {}
        for one, count in zip(offered, counts, strict=True):
            if not count:
                passed.setdefault(one.way.name, []).append(plan.chunks[one.place].row)
        for way in self.ways:
            if way.name in passed:
                way.trust.pass_by(passed[way.name])
        return counts


def _sum_of_powers(trust: float, count: int) -> float:
    """Guesses of a chain that will stand."""
    return float(sum(trust**depth for depth in range(1, count + 1)))
