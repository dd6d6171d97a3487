"""Builds speculation: the methods of an engine, their controller, and how drafts are verified."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from archerfish.config.resolve import ResolvedConfig
from archerfish.console import logger
from archerfish.execution.step.rows import Rows
from archerfish.sampling.sampler import Sampler
from archerfish.speculation.constants import CONSTANTS
from archerfish.speculation.controller import SpeculationController
from archerfish.speculation.cost_model import SpeculationCostModel
from archerfish.speculation.draft import MAX_NODES
from archerfish.speculation.drafters.cache_progress import DraftCacheProgress
from archerfish.speculation.drafters.drafter import RunnableDrafter
from archerfish.speculation.drafters.feature_store import FeatureStore
from archerfish.speculation.drafters.model_proposer import DrafterLimits, ModelProposer
from archerfish.speculation.method import SpeculationMethod
from archerfish.speculation.proposers.lookahead import LookaheadProposer
from archerfish.speculation.proposers.suffix import SuffixProposer
from archerfish.speculation.verification.rules import TypicalAcceptance
from archerfish.speculation.verification.verifier import VerificationConfig, Verifier

_MAX_COPIED_TOKENS = 32
"""Maximum draft length of copies per sequence and step: longer ones take several steps."""
_MAX_AUTOREGRESSIVE_TOKENS = 8
"""Maximum draft length of drafters: a later token would hardly ever be accepted."""


@dataclass(frozen=True, slots=True)
class DrafterRuntime:
    """A drafter that can run, and its progress in the blocks of the KV cache."""

    method: str
    drafter: RunnableDrafter
    progress: DraftCacheProgress
    max_model_len: int
    features: FeatureStore | None = None
    """The model's features that it reads."""
    max_depth: int = MAX_NODES
    """Maximum draft length."""


@dataclass(frozen=True, slots=True)
class DrafterFactory:
    """A loaded drafter, to be connected to an executor's rows."""

    make: Callable[[Rows], DrafterRuntime]
    aux_layers: tuple[int, ...]
    """Layers of the model whose inputs it reads."""


def build_verification(config: ResolvedConfig) -> VerificationConfig:
    """Return the verification rule for requests that choose none."""
    speculation = config.speculation
    if speculation.verification == "typical":
        logger.warning(
            "verification typical is lossy: draft tokens are accepted if they are likely enough, so answers differ "
            'from those of the model alone; "coupled" keeps the very tokens, "rejection" their distribution'
        )
    typical = TypicalAcceptance(speculation.typical_epsilon, speculation.typical_delta)
    return VerificationConfig(speculation.verification, typical)


def build_controller(
    config: ResolvedConfig, rows: Rows, sampler: Sampler, verifier: Verifier, drafter: DrafterRuntime | None
) -> SpeculationController | None:
    """Build the controller of all methods; None where speculation is off."""
    if not config.speculates:
        return None
    speculation, cost_model = config.speculation, SpeculationCostModel()
    suffix = SuffixProposer(
        min_length=speculation.prompt_lookup_min or 1,
        max_length=speculation.prompt_lookup_max,
        branches=speculation.branches,
        shared=speculation.shared,
    )
    methods = [
        SpeculationMethod("suffix", suffix, _MAX_COPIED_TOKENS),
        SpeculationMethod("lookahead", LookaheadProposer(), MAX_NODES, all_or_nothing=True),
    ]
    if drafter is not None:
        proposer = ModelProposer(
            drafter.drafter,
            rows,
            drafter.progress,
            sampler,
            time.perf_counter,
            cost_model.drafter_passes,
            DrafterLimits(config.max_num_batched_tokens, drafter.max_model_len, speculation.branches),
            verifier.uses_rejection,
        )
        depth = min(drafter.max_depth, max(_MAX_AUTOREGRESSIVE_TOKENS, speculation.num_speculative_tokens or 0))
        max_draft_tokens = min(MAX_NODES, depth * speculation.branches)
        rate = CONSTANTS.drafter_acceptance_rate
        methods.append(SpeculationMethod(drafter.method, proposer, max_draft_tokens, initial_acceptance_rate=rate))
    return SpeculationController(
        methods, speculation.method, rows, time.perf_counter, speculation.num_speculative_tokens, cost_model
    )
