"""Keeps the forms of answers compiled, each compiled once. Any thread may ask; knows no rows and no torch."""

import threading
from collections import OrderedDict
from contextlib import suppress
from importlib.util import find_spec
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from archerfish.request import Structured
from archerfish.sampling.forms import compile_form, load_vocabulary

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

    from archerfish.tokenizer import Tokenizer

_MOST_KEPT = 32
"""Forms that nobody holds: clients tend to use a few, again and again, and one can take a hundred megabytes."""


class CompiledForm:
    """A form over the model's vocabulary, or why it cannot be one. Stays compiled for as long as anybody holds it."""

    def __init__(self, matcher: "LLMatcher | None", problem: str = "") -> None:
        self._matcher = matcher
        self.problem = problem

    def fresh(self) -> "LLMatcher | None":
        """A matcher before the first token, for one answer."""
        return None if self._matcher is None else self._matcher.deep_copy()


class CompiledForms:
    """The forms of one model's answers."""

    def __init__(self, tokenizer: "Tokenizer", vocab_size: int, eos_token_ids: tuple[int, ...]) -> None:
        self._tokenizer = tokenizer
        self.num_tokens = max(vocab_size, tokenizer.vocab_size)  # Many tokenizers know more than the model.
        self._eos_token_ids = eos_token_ids
        self._vocabulary: LLTokenizer | None = None
        """Made when there is time or the first form comes, since few engines ever see one."""
        self._held: WeakValueDictionary[Structured, CompiledForm] = WeakValueDictionary()
        self._recent: OrderedDict[Structured, CompiledForm] = OrderedDict()
        self._looking = threading.Lock()
        self._compiling = threading.Lock()

    def find(self, structured: Structured) -> CompiledForm | None:
        """The form if it is there. Never waits for another that is being compiled."""
        with self._looking:
            form = self._held.get(structured)
            return None if form is None else self._keep(structured, form)

    def get(self, structured: Structured) -> CompiledForm:
        """The form, compiled now if it is not there."""
        form = self.find(structured)
        if form is not None:
            return form
        with self._compiling:
            form = self.find(structured)  # Another thread may have wanted the same.
            if form is not None:
                return form
            form = self._compile(structured)
            with self._looking:
                return self._keep(structured, form)

    def load_vocabulary(self) -> None:
        """Do ahead what the first form would have to wait for, where forms can be compiled at all."""
        # What is wrong with the model is told to whoever asks for a form.
        with self._compiling, suppress(ValueError):
            if find_spec("llguidance") is not None:
                self._loaded_vocabulary()

    def _compile(self, structured: Structured) -> CompiledForm:
        try:
            return CompiledForm(compile_form(structured, self._loaded_vocabulary()))
        except ValueError as error:
            return CompiledForm(None, str(error))
        except (KeyboardInterrupt, SystemExit):
            raise
        # The library is native and may panic, which is no Exception; that concerns whoever asked for the form alone.
        except BaseException as error:
            return CompiledForm(None, f"{type(error).__name__}: {error}")

    def _loaded_vocabulary(self) -> "LLTokenizer":
        if self._vocabulary is None:
            self._vocabulary = load_vocabulary(self._tokenizer.to_json(), self.num_tokens, self._eos_token_ids)
        return self._vocabulary

    def _keep(self, structured: Structured, form: CompiledForm) -> CompiledForm:
        self._held[structured] = self._recent[structured] = form
        self._recent.move_to_end(structured)
        if len(self._recent) > _MOST_KEPT:
            self._recent.popitem(last=False)
        return form
