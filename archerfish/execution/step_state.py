"""The state that steps read and write: rows, KV cache, sampling parameters, and what is requested of prompts."""

import torch

from archerfish.execution.prompt_outputs import PromptOutputs
from archerfish.execution.step.inputs import StepBatch
from archerfish.execution.step.rows import Rows
from archerfish.kvcache.storage import KVStorage
from archerfish.ops.signatures import DrawRows
from archerfish.sampling.sampler import Sampler
from archerfish.scheduling.plan import Plan
from archerfish.speculation.drafters.feature_store import FeatureStore
from archerfish.speculation.verification.verifier import Verifier


class StepState:
    """Everything of an executor that plans change before their step is run."""

    def __init__(
        self,
        rows: Rows,
        storage: KVStorage,
        sampler: Sampler,
        verifier: Verifier,
        prompt_outputs: PromptOutputs,
        features: FeatureStore | None = None,
    ) -> None:
        """`features` are stored for drafters that read them."""
        self.rows = rows
        self.storage = storage
        self.sampler = sampler
        self.verifier = verifier
        self.prompt_outputs = prompt_outputs
        self.features = features

    @torch.inference_mode()
    def apply(self, plan: Plan) -> None:
        """Apply what a plan changes: starts, new blocks and copies."""
        for start in plan.starts:
            self.rows.start(start)
            self.verifier.start(start)
            written = start.tokens[start.num_prompt_tokens :]
            self.sampler.set_row(
                start.row, start.params, start.seed, start.num_prompt_tokens, start.stop_token_ids, written
            )
            self.prompt_outputs.start(start)
        for chunk in plan.chunks:
            if chunk.new_blocks:
                self.rows.append_blocks(chunk)
        self.storage.copy(plan.copies)
        if self.features is not None:
            self.features.copy(plan.copies)

    def draw_rows(self, plan: Plan, batch: StepBatch) -> DrawRows | None:
        """Return what a step's tokens are sampled by; None if the host must process logits or more is requested."""
        if not len(batch.sampled_chunks) or self.prompt_outputs.concern(plan):
            return None
        return self.sampler.plain_draws(batch.rows[batch.sampled_chunks], batch.ends[batch.sampled_chunks])
