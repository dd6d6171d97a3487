"""The constants of the speculation controller, in one place."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SpeculationConstants:
    """What the controller assumes before it has learned, how fast it learns, and how much it may try."""

    share_in_vain: float = 0.005
    """Share of all steps that lookups and rejected drafts may cost."""
    initial_budget: float = 16.0
    """Steps that may be spent in vain at the start."""
    max_budget: float = 16.0
    """Steps that can be saved up, by drafts that paid, to be spent in vain later."""
    max_debt: float = 2.0
    """Steps by which the budget can be overdrawn: it bounds how long nothing is tried."""
    num_trial_tokens: int = 64
    """Verified draft tokens after which a drafter that was chosen by name is judged: one draft says little of many."""
    trial_length: int = 4
    """Draft length while it is not."""
    max_backoff: int = 16
    """Steps between two looks at a sequence for which no draft is verified: at first 1, then 2, 4 ..."""
    hint_interval: int = 4
    """Steps between two checks for a hint, for each sequence that runs; at most `max_backoff`."""
    plain_interval: int = 64
    """Steps with drafts after which some are run without, because gains are measured against them."""
    timing_interval: int = 8
    """One of so many plain steps is timed."""
    margin: float = 1.1
    """Multiple of its cost that a draft token must save, because estimates are not exact."""
    drafter_margin: float = 1.2
    """The same for drafters: their weights and the model's evict each other from caches, which slows later steps."""
    forget_interval: int = 64
    """Refused drafts after which the latencies of longer steps are forgotten: they may have been accidents."""
    acceptance_rate: float = 0.5
    """Assumed chance that a draft token is accepted, before any was verified."""
    drafter_acceptance_rate: float = 0.75
    """The same for a drafter, which was trained for its model."""
    prior_weight: float = 10.0
    """Verified draft tokens that a sequence's acceptance rate begins with, as if they had gone as those of all."""
    row_decay: float = 0.97
    """Decay of a sequence's acceptance statistics with each draft."""
    method_decay: float = 0.995
    """The same for the statistics of all sequences."""
    unverified_decay: float = 0.9
    """Decay of both with each draft that is not verified: a bad estimate expires, and it is tried again."""
    price_decay: float = 0.99
    """Decay per step of what the price of tokens is computed from."""
    price_prior_steps: float = 4.0
    """Steps without speculation that the price of tokens begins with."""
    fast_tokens_per_step: float = 1.5
    """Tokens per step from which on drafts speed a sequence of a batch up; below, they cost more than they bring."""
    speed_prior_steps: float = 8.0
    """Steps of one token that a sequence's tokens per step begin with."""
    answer_length: float = 64.0
    """Tokens of an answer, assumed before any was seen: a drafter's prompt pass must pay over so many."""
    answer_length_decay: float = 0.9
    """Decay of the mean answer length with each answer."""


CONSTANTS = SpeculationConstants()
