"""A proposer that says what it is told to, and remembers what it was given."""

from collections.abc import Sequence

from archerfish.request import SamplingParams, Speculation
from archerfish.scheduling.plan import SequenceStart
from archerfish.speculation.draft import NO_DRAFT, Draft
from archerfish.speculation.proposer import DraftRequest


class ScriptedProposer:
    """Proposes the same draft for every row, up to the length that is requested."""

    def __init__(self, draft: Draft = NO_DRAFT) -> None:
        self.draft = draft
        self.given: dict[int, list[int]] = {}
        self.observed: list[tuple[int, Draft, list[int]]] = []

    def start(self, row: int, tokens: Sequence[int], num_prompt_tokens: int, tenant: str) -> None:
        self.given[row] = list(tokens)

    def extend(self, row: int, tokens: Sequence[int]) -> None:
        self.given[row] += tokens

    def has_hint(self, row: int) -> bool:
        return True

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        return [self.draft.truncated(request.max_tokens) for request in requests]

    def observe(self, row: int, draft: Draft, sampled: Sequence[int]) -> None:
        self.observed.append((row, draft, list(sampled)))


def sequence_start(
    row: int, tokens: Sequence[int], max_tokens: int | None = None, method: str | None = None
) -> SequenceStart:
    speculation = None if method is None else Speculation(method=method)
    return SequenceStart(
        row=row,
        tokens=tuple(tokens),
        num_prompt_tokens=len(tokens),
        blocks=((),),
        params=SamplingParams(max_tokens=max_tokens, speculation=speculation),
        seed=1,
        stop_token_ids=(),
    )
