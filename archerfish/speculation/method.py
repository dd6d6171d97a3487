"""One way of guessing, and how it went so far. Knows no plans."""

from copy import deepcopy
from dataclasses import dataclass, field, replace

from archerfish.speculation.acceptance_rate import Trust
from archerfish.speculation.backoff import Rests
from archerfish.speculation.drafters.model_proposer import NetworkProposer
from archerfish.speculation.expected_drafts import Uses
from archerfish.speculation.proposer import Proposer
from archerfish.speculation.step_latency import StepTimes


@dataclass(frozen=True, slots=True, eq=False)
class Way:
    name: str
    proposer: Proposer
    most: int
    """Guesses for one sequence in one step."""
    as_a_whole: bool = False
    """A draft is checked whole or not at all: its parts have other uses than to stand."""
    trust: Trust = field(default_factory=Trust)
    rests: Rests = field(default_factory=Rests)
    uses: Uses = field(default_factory=Uses)

    @property
    def network(self) -> NetworkProposer | None:
        """Who takes time for each guess, so that it is chosen before how many are made."""
        return self.proposer if isinstance(self.proposer, NetworkProposer) else None

    @property
    def width(self) -> int:
        """Guesses that stand side by side at each place."""
        return self.network.branches if self.network is not None else 1

    @property
    def surest(self) -> float:
        """The largest chance that a guess may have to stand."""
        surest = self.proposer.surest
        return self.trust.surest if surest is None else surest

    def anew(self, times: StepTimes) -> "Way":
        """The same for somebody else, who keeps times for itself; with the trust that there is by now."""
        proposer = deepcopy(self.proposer) if self.network is None else self.network.anew(times)
        return replace(self, proposer=proposer, trust=deepcopy(self.trust), rests=Rests(), uses=Uses())
