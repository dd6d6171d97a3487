"""One method of speculation: its proposer, its limits, and what it knows of the sequences on the executor's rows."""

from copy import deepcopy
from dataclasses import dataclass, field, replace

from archerfish.speculation.constants import CONSTANTS
from archerfish.speculation.drafters.model_proposer import ModelProposer
from archerfish.speculation.proposer import Proposer
from archerfish.speculation.step_latency import StepLatencyModel


@dataclass(slots=True)
class AcceptanceCounts:
    """Decayed counts of draft tokens. One is verified if all before it were accepted."""

    num_verified: float = 0.0
    num_accepted: float = 0.0

    def record(self, num_verified: int, num_accepted: int, decay: float) -> None:
        self.num_verified = decay * self.num_verified + num_verified
        self.num_accepted = decay * self.num_accepted + num_accepted

    def rate(self, prior: float) -> float:
        """Return the chance that a draft token is accepted, given that the one before it was."""
        weight = CONSTANTS.prior_weight
        return (self.num_accepted + weight * prior) / (self.num_verified + weight)


@dataclass(slots=True)
class MethodRow:
    """What a method knows of one sequence."""

    num_given: int = 0
    """Tokens that its proposer was given: none before its first use."""
    until: int = 0
    """The first step in which it may propose."""
    backoff: int = 0
    """Steps of its last backoff."""
    has_gained: bool = False
    """Whether a token of its last draft was accepted."""
    counts: AcceptanceCounts = field(default_factory=AcceptanceCounts)


@dataclass(frozen=True, slots=True, eq=False)
class SpeculationMethod:
    """A method that requests can choose by name."""

    name: str
    proposer: Proposer
    max_draft_tokens: int
    """Maximum draft length per sequence and step."""
    all_or_nothing: bool = False
    """A draft is verified whole or not at all: parts of it have other uses than to be accepted."""
    initial_acceptance_rate: float = CONSTANTS.acceptance_rate
    counts: AcceptanceCounts = field(default_factory=AcceptanceCounts)
    """Counts of all sequences."""
    rows: dict[int, MethodRow] = field(default_factory=dict)

    @property
    def drafter(self) -> ModelProposer | None:
        """The proposer if it has weights: it takes time per draft token, so lengths are chosen before it proposes."""
        return self.proposer if isinstance(self.proposer, ModelProposer) else None

    @property
    def width(self) -> int:
        """Draft tokens per depth that are siblings."""
        return self.drafter.branches if self.drafter is not None else 1

    def acceptance_rate(self, row: int) -> float:
        """Return the chance that a row's draft token is accepted, given that the one before it was."""
        return self.rows[row].counts.rate(self.counts.rate(self.initial_acceptance_rate))

    def record_verified(self, row: int, depth: int, num_accepted: int) -> None:
        """Record that so many tokens of a draft of this depth were accepted, one after the other."""
        num_verified, state = min(depth, num_accepted + 1), self.rows[row]
        state.counts.record(num_verified, num_accepted, CONSTANTS.row_decay)
        self.counts.record(num_verified, num_accepted, CONSTANTS.method_decay)
        state.backoff, state.has_gained = 0, num_accepted > 0

    def record_unverified(self, row: int, step: int) -> None:
        """Record that there was no draft for a row in this step, or none that paid, and back off.

        Statistics decay, so that a bad estimate does not outlast its reason.
        """
        state = self.rows[row]
        state.has_gained = False
        state.counts.record(0, 0, CONSTANTS.unverified_decay)
        self.counts.record(0, 0, CONSTANTS.method_decay)
        state.backoff = min(CONSTANTS.max_backoff, 2 * state.backoff or 1)
        state.until = step + state.backoff

    def fresh_copy(self, drafter_passes: StepLatencyModel) -> "SpeculationMethod":
        """Return a copy for another controller, without its rows."""
        proposer = deepcopy(self.proposer) if self.drafter is None else self.drafter.fresh_copy(drafter_passes)
        return replace(self, proposer=proposer, counts=deepcopy(self.counts), rows={})
