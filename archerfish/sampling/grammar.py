"""Follows the grammar of each row that has one, and masks what it forbids."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from archerfish.request import Structured
from archerfish.sampling.compiled import CompiledForms
from archerfish.sampling.forms import why

if TYPE_CHECKING:
    from llguidance import LLExecutor, LLMatcher
    from torch import Tensor

    from archerfish.ops.arrays import Ints


Guessed = Mapping[int, Sequence[int]]
"""By place in a step, guessed tokens that come before it and are not part of the row's answer yet. None without a
guess."""


class Grammars:
    """The grammars of all rows that have one."""

    def __init__(self, forms: CompiledForms) -> None:
        """A form that is not among `forms` yet is compiled when a row takes it up, and the step waits."""
        self._forms = forms
        self._workers: LLExecutor | None = None
        self._rows: dict[int, LLMatcher] = {}
        self._broken: dict[int, str] = {}
        """Rows that cannot go on, and why."""

    def __contains__(self, row: int) -> bool:
        return row in self._rows or row in self._broken

    def __len__(self) -> int:
        """Rows that are bound to a form."""
        return len(self._rows) + len(self._broken)

    def set_row(self, row: int, structured: Structured | None, written: tuple[int, ...]) -> None:
        """A sequence takes up the row; `written` is the part of its answer that it already has."""
        self._rows.pop(row, None)
        self._broken.pop(row, None)
        if structured is None:
            return
        form = self._forms.get(structured)
        matcher = form.fresh()
        if matcher is None:
            self._broken[row] = form.problem
            return
        if written:
            matcher.consume_tokens(list(written))
        self._rows[row] = matcher

    def mask(self, logits: "Tensor", rows: "Ints", guessed: Guessed) -> "Tensor":
        """Logits [rows, vocabulary] with what the rows' grammars forbid at minus infinity.

        Where a grammar would not have allowed the guesses before it, nothing is masked: nobody gets there.
        """
        bound: dict[int, LLMatcher] = {}
        for place, row in enumerate(rows.tolist() if self._rows else ()):
            matcher = self._rows.get(row)
            if matcher is not None and (matcher := _after(matcher, guessed.get(place, ()))) is not None:
                bound[place] = matcher
        if not bound:
            return logits
        import torch

        allowed = self._fill(list(bound.values()))[:, : logits.shape[1]]
        for row in {int(rows[place]) for place in bound}:
            # A matcher that failed allows the end: the answer would look complete.
            if self._rows[row].is_error():
                self._broken[row] = why(self._rows.pop(row))
        places = torch.tensor(list(bound), device=logits.device)
        forbidden = torch.from_numpy(allowed == 0).to(logits.device)
        return logits.index_copy(0, places, logits[places].masked_fill(forbidden, -torch.inf))

    def failures(self, rows: "Ints") -> dict[int, str]:
        """By place in the step, after its mask: rows whose grammar could not be followed."""
        if not self._broken:
            return {}
        broken = {place: self._broken[row] for place, row in enumerate(rows.tolist()) if row in self._broken}
        return {place: f"the form of the answer cannot be kept to: {reason}" for place, reason in broken.items()}

    def advance(self, row: int, tokens: Sequence[int]) -> None:
        """The row's answer goes on with these tokens."""
        if (matcher := self._rows.get(row)) is not None:
            for token in tokens:  # One by one: one that has stopped takes no notice, but would mind several.
                matcher.consume_token(token)

    def _fill(self, matchers: "list[LLMatcher]") -> "np.ndarray[tuple[int, int], np.dtype[np.uint8]]":
        """1 for every token [matchers, tokens] that may come next."""
        import torch
        from llguidance import LLExecutor
        from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask_par

        if self._workers is None:
            self._workers = LLExecutor(num_threads=torch.get_num_threads())
        packed = allocate_token_bitmask(len(matchers), self._forms.num_tokens)
        fill_next_token_bitmask_par(self._workers, [(matcher, i) for i, matcher in enumerate(matchers)], packed)
        return np.unpackbits(packed.view(np.uint8), axis=1, bitorder="little")


def _after(matcher: "LLMatcher", tokens: Sequence[int]) -> "LLMatcher | None":
    """As it would be after these tokens; None if it does not allow them."""
    if not tokens:
        return matcher
    later = matcher.deep_copy()
    for token in tokens:
        later.consume_token(token)
    return None if later.is_error() else later
