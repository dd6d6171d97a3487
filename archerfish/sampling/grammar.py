"""Keeps answers to a form that was asked for: compiles grammars, follows each row's, and masks what it forbids."""

import json
import os
from collections import OrderedDict
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from llguidance import LLExecutor, LLMatcher, LLParserLimits, LLTokenizer
from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask_par

from archerfish.errors import InvalidParameter
from archerfish.request import Structured

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions
    from torch import Tensor

    from archerfish.ops.arrays import Ints

_MOST_KEPT = 128
"""Compiled grammars: clients tend to use a few, again and again."""

# What a hostile schema may take; the library's own limits on the work for one mask come on top.
_LIMITS = LLParserLimits(initial_lexer_fuel=2_000_000, max_grammar_size=500_000)


# Freely placed space would let a model write nothing else for ever.
_LAYOUT: "JsonCompileOptions" = {"whitespace_flexible": False, "item_separator": ", ?", "key_separator": ": ?"}


def check_structured(structured: Structured) -> None:
    """Raises what is wrong with it. Needs no model."""
    grammar = _grammar(structured)
    problem = LLMatcher.validate_grammar(grammar, limits=_LIMITS)
    if problem:
        raise InvalidParameter(_field(structured), "...", " ".join(problem.split())[:500])


class Grammars:
    """The grammars of all rows that have one."""

    def __init__(self, tokenizer: Path, vocab_size: int, eos_token_ids: tuple[int, ...]) -> None:
        """`tokenizer` is a tokenizer.json. It is read when the first grammar comes, since few engines ever see one."""
        self._path = tokenizer
        self._vocab_size = vocab_size
        self._eos_token_ids = list(eos_token_ids)
        self._tokenizer: LLTokenizer | None = None
        self._compiled: OrderedDict[Structured, LLMatcher] = OrderedDict()
        self._rows: dict[int, LLMatcher] = {}
        self._workers = LLExecutor(num_threads=os.cpu_count())

    def set_row(self, row: int, structured: Structured | None, written: tuple[int, ...]) -> None:
        """A sequence takes up the row; `written` is the part of its answer that it already has."""
        self._rows.pop(row, None)
        if structured is not None:
            matcher = self._fresh(structured)
            if written:
                matcher.consume_tokens(list(written))
            self._rows[row] = matcher

    def mask(self, logits: "Tensor", rows: "Ints") -> "Tensor":
        """Logits [rows, vocabulary] with what the rows' grammars forbid at minus infinity."""
        bound = [(place, matcher) for place, row in enumerate(rows.tolist()) if (matcher := self._rows.get(row))]
        if not bound:
            return logits
        import torch

        allowed = allocate_token_bitmask(len(bound), self._vocab_size)
        matchers = [(matcher, index) for index, (_, matcher) in enumerate(bound)]
        fill_next_token_bitmask_par(self._workers, matchers, allowed)
        bits = np.unpackbits(allowed.view(np.uint8), axis=1, bitorder="little")[:, : logits.shape[1]]
        places = torch.tensor([place for place, _ in bound], device=logits.device)
        forbidden = torch.from_numpy(bits == 0).to(logits.device)
        return logits.index_copy(0, places, logits[places].masked_fill(forbidden, -torch.inf))

    def advance(self, rows: "Ints", tokens: list[int]) -> None:
        """The rows have drawn these tokens."""
        for row, token in zip(rows.tolist(), tokens, strict=True):
            if (matcher := self._rows.get(row)) is not None:
                matcher.consume_token(token)

    def _fresh(self, structured: Structured) -> LLMatcher:
        if self._tokenizer is None:
            self._tokenizer = LLTokenizer(str(self._path), n_vocab=self._vocab_size, eos_token=self._eos_token_ids)
        if structured not in self._compiled:
            self._compiled[structured] = LLMatcher(self._tokenizer, _grammar(structured), log_level=0, limits=_LIMITS)
            if len(self._compiled) > _MOST_KEPT:
                self._compiled.popitem(last=False)
        self._compiled.move_to_end(structured)
        return self._compiled[structured].deep_copy()


def _grammar(structured: Structured) -> str:
    """In the library's own form."""
    try:
        if structured.json_schema is not None:
            return LLMatcher.grammar_from_json_schema(structured.json_schema, defaults=_LAYOUT)
        if structured.json_object:
            return LLMatcher.grammar_from_json_schema('{"type": "object"}', defaults=_LAYOUT)
        if structured.regex is not None:
            return LLMatcher.grammar_from_regex(structured.regex)
        if structured.choice:
            return "start: " + " | ".join(json.dumps(text, ensure_ascii=False) for text in structured.choice)
        assert structured.grammar is not None
        return LLMatcher.grammar_from_lark(structured.grammar)
    except ValueError as error:
        raise InvalidParameter(_field(structured), "...", str(error)[:500]) from error


def _field(structured: Structured) -> str:
    names = ("json_schema", "json_object", "regex", "choice", "grammar")
    return next(name for name in names if getattr(structured, name))
