"""Follows the grammar of each row that has one, and masks what it forbids."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from archerfish.request import Structured
from archerfish.sampling.grammar_cache import GrammarCache
from archerfish.sampling.grammar_compiler import why

if TYPE_CHECKING:
    from llguidance import LLExecutor, LLMatcher
    from torch import Tensor

    from archerfish.ops.arrays import Ints


DraftContext = Mapping[int, Sequence[int]]
"""Draft tokens that precede a draw and are not part of the row's answer yet, by index in the step."""


class RowGrammars:
    """The matchers of all rows that have a grammar."""

    def __init__(self, grammars: GrammarCache) -> None:
        """A grammar that is not cached yet is compiled when a row starts to use it, and the step waits."""
        self._grammars = grammars
        self._workers: LLExecutor | None = None
        self._rows: dict[int, LLMatcher] = {}
        self._broken: dict[int, str] = {}
        """Rows that cannot go on, and the reasons."""

    def __contains__(self, row: int) -> bool:
        return row in self._rows or row in self._broken

    def __len__(self) -> int:
        """Return the number of rows with a grammar."""
        return len(self._rows) + len(self._broken)

    def set_row(self, row: int, structured: Structured | None, written: tuple[int, ...]) -> None:
        """Set the grammar of a sequence that takes up a row; `written` is what its answer already has."""
        self._rows.pop(row, None)
        self._broken.pop(row, None)
        if structured is None:
            return
        grammar = self._grammars.get(structured)
        matcher = grammar.new_matcher()
        if matcher is None:
            self._broken[row] = grammar.problem
            return
        if written:
            matcher.consume_tokens(list(written))
        self._rows[row] = matcher

    def mask(self, logits: "Tensor", rows: "Ints", drafted: DraftContext) -> "Tensor":
        """Return logits [rows, vocabulary] with the tokens that the rows' grammars forbid at minus infinity.

        Nothing is masked after draft tokens that a grammar forbids: they are rejected.
        """
        bound: dict[int, LLMatcher] = {}
        for index, row in enumerate(rows.tolist() if self._rows else ()):
            matcher = self._rows.get(row)
            if matcher is not None and (matcher := _after(matcher, drafted.get(index, ()))) is not None:
                bound[index] = matcher
        if not bound:
            return logits
        import torch

        allowed = self._fill(list(bound.values()))[:, : logits.shape[1]]
        for row in {int(rows[index]) for index in bound}:
            # A matcher that failed allows the end: the answer would look complete.
            if self._rows[row].is_error():
                self._broken[row] = why(self._rows.pop(row))
        indices = torch.tensor(list(bound), device=logits.device)
        forbidden = torch.from_numpy(allowed == 0).to(logits.device)
        return logits.index_copy(0, indices, logits[indices].masked_fill(forbidden, -torch.inf))

    def failures(self, rows: "Ints") -> dict[int, str]:
        """Return, after `mask`, why rows could not follow their grammar, by index in the step."""
        if not self._broken:
            return {}
        broken = {index: self._broken[row] for index, row in enumerate(rows.tolist()) if row in self._broken}
        return {index: f"the response format cannot be followed: {reason}" for index, reason in broken.items()}

    def advance(self, row: int, tokens: Sequence[int]) -> None:
        """Advance the row's grammar by tokens of its answer."""
        if (matcher := self._rows.get(row)) is not None:
            for token in tokens:  # One by one: a matcher that has stopped ignores one token, but fails with several.
                matcher.consume_token(token)

    def _fill(self, matchers: "list[LLMatcher]") -> "np.ndarray[tuple[int, int], np.dtype[np.uint8]]":
        """Return 1 for every token [matchers, tokens] that may come next."""
        import torch
        from llguidance import LLExecutor
        from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask_par

        if self._workers is None:
            self._workers = LLExecutor(num_threads=torch.get_num_threads())
        packed = allocate_token_bitmask(len(matchers), self._grammars.num_tokens)
        fill_next_token_bitmask_par(self._workers, [(matcher, i) for i, matcher in enumerate(matchers)], packed)
        return np.unpackbits(packed.view(np.uint8), axis=1, bitorder="little")


def _after(matcher: "LLMatcher", tokens: Sequence[int]) -> "LLMatcher | None":
    """Return the matcher as it is after these tokens; None if it does not allow them."""
    if not tokens:
        return matcher
    later = matcher.deep_copy()
    for token in tokens:
        later.consume_token(token)
    return None if later.is_error() else later
