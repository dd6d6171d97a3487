"""The compiled grammars of a model's answers, each compiled once. Safe to use from any thread."""

import threading
from collections import OrderedDict
from contextlib import suppress
from importlib.util import find_spec
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from archerfish.request import Structured
from archerfish.sampling.grammar_compiler import compile_grammar, load_vocabulary

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

    from archerfish.tokenizer import Tokenizer

_MAX_RECENT = 32
"""Grammars that are cached without being in use: clients tend to use a few, and one can take a hundred megabytes."""


class CompiledGrammar:
    """A grammar over the model's vocabulary, or why there is none. Cached for as long as it is referenced."""

    def __init__(self, matcher: "LLMatcher | None", problem: str = "") -> None:
        self._matcher = matcher
        self.problem = problem

    def new_matcher(self) -> "LLMatcher | None":
        """Return a matcher before the first token, for one answer; None if the grammar could not be compiled."""
        return None if self._matcher is None else self._matcher.deep_copy()


class GrammarCache:
    """The grammars of one model's answers."""

    def __init__(self, tokenizer: "Tokenizer", vocab_size: int, eos_token_ids: tuple[int, ...]) -> None:
        self._tokenizer = tokenizer
        self.num_tokens = max(vocab_size, tokenizer.vocab_size)  # Many tokenizers know more than the model.
        self._eos_token_ids = eos_token_ids
        self._vocabulary: LLTokenizer | None = None
        """Loaded when the engine is idle or the first grammar is compiled, since few engines ever see one."""
        self._in_use: WeakValueDictionary[Structured, CompiledGrammar] = WeakValueDictionary()
        self._recent: OrderedDict[Structured, CompiledGrammar] = OrderedDict()
        self._lookup_lock = threading.Lock()
        self._compile_lock = threading.Lock()

    def find(self, structured: Structured) -> CompiledGrammar | None:
        """Return a cached grammar. Never waits for another that is being compiled."""
        with self._lookup_lock:
            grammar = self._in_use.get(structured)
            return None if grammar is None else self._store(structured, grammar)

    def get(self, structured: Structured) -> CompiledGrammar:
        """Return a grammar, compiling it now if it is not cached."""
        grammar = self.find(structured)
        if grammar is not None:
            return grammar
        with self._compile_lock:
            grammar = self.find(structured)  # Another thread may have compiled it meanwhile.
            if grammar is not None:
                return grammar
            grammar = self._compile(structured)
            with self._lookup_lock:
                return self._store(structured, grammar)

    def load_vocabulary(self) -> None:
        """Load what the first grammar would have to wait for, where grammars can be compiled at all."""
        # Problems of the model are reported with the first grammar.
        with self._compile_lock, suppress(ValueError):
            if find_spec("llguidance") is not None:
                self._loaded_vocabulary()

    def _compile(self, structured: Structured) -> CompiledGrammar:
        try:
            return CompiledGrammar(compile_grammar(structured, self._loaded_vocabulary()))
        except ValueError as error:
            return CompiledGrammar(None, str(error))
        except (KeyboardInterrupt, SystemExit):
            raise
        # The library is native and may panic, which is no Exception; that concerns this grammar's requests alone.
        except BaseException as error:
            return CompiledGrammar(None, f"{type(error).__name__}: {error}")

    def _loaded_vocabulary(self) -> "LLTokenizer":
        if self._vocabulary is None:
            self._vocabulary = load_vocabulary(self._tokenizer.to_json(), self.num_tokens, self._eos_token_ids)
        return self._vocabulary

    def _store(self, structured: Structured, grammar: CompiledGrammar) -> CompiledGrammar:
        self._in_use[structured] = self._recent[structured] = grammar
        self._recent.move_to_end(structured)
        if len(self._recent) > _MAX_RECENT:
            self._recent.popitem(last=False)
        return grammar
