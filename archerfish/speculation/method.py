"""One method of speculation: its proposer, its limits, and how it went so far."""

from copy import deepcopy
from dataclasses import dataclass, field, replace

from archerfish.speculation.acceptance_rate import AcceptanceRate
from archerfish.speculation.backoff import ProposalBackoff
from archerfish.speculation.drafters.model_proposer import ModelProposer
from archerfish.speculation.expected_drafts import ExpectedDrafts
from archerfish.speculation.proposer import Proposer
from archerfish.speculation.step_latency import StepLatencyModel


@dataclass(frozen=True, slots=True, eq=False)
class SpeculationMethod:
    """A method that requests can choose by name."""

    name: str
    proposer: Proposer
    max_draft_tokens: int
    """Maximum draft length per sequence and step."""
    all_or_nothing: bool = False
    """A draft is verified whole or not at all: parts of it have other uses than to be accepted."""
    acceptance: AcceptanceRate = field(default_factory=AcceptanceRate)
    backoff: ProposalBackoff = field(default_factory=ProposalBackoff)
    expected_drafts: ExpectedDrafts = field(default_factory=ExpectedDrafts)

    @property
    def drafter(self) -> ModelProposer | None:
        """The proposer if it has weights: it takes time per draft token, so lengths are chosen before it proposes."""
        return self.proposer if isinstance(self.proposer, ModelProposer) else None

    @property
    def width(self) -> int:
        """Draft tokens per depth that are siblings."""
        return self.drafter.branches if self.drafter is not None else 1

    @property
    def max_acceptance(self) -> float:
        """The highest acceptance rate to hope for."""
        highest = self.proposer.max_acceptance
        return self.acceptance.highest if highest is None else highest

    def fresh_copy(self, drafter_passes: StepLatencyModel) -> "SpeculationMethod":
        """Return a copy for another controller: with today's acceptance rates, without backoff."""
        proposer = deepcopy(self.proposer) if self.drafter is None else self.drafter.fresh_copy(drafter_passes)
        return replace(
            self,
            proposer=proposer,
            acceptance=deepcopy(self.acceptance),
            backoff=ProposalBackoff(),
            expected_drafts=ExpectedDrafts(),
        )
