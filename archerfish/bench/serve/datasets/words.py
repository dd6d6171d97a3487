"""Texts of a given length, made of random words. Without a tokenizer a word counts as a token."""

import re
from typing import NamedTuple

import numpy as np

from archerfish.tokenizer import Tokenizer

_WORD = re.compile(r" [a-z]{2,}")
_ENOUGH_WORDS = 2048
# Short and frequent: most vocabularies have a token for each.
_COMMON = (
    "the of and to in is was for on that with as it by at from his her are be this have or had not but which one you "
    "all were when we there can an your their said if do will each about how up out them then she many some so these "
    "would other into has more two like him see time could no make than first been its who now people my made over did "
    "down only way find use may water long little very after words called just where most know get through back much "
    "before go good new write our used me man too any day same right look think also around another came come work "
    "three word must because does part even place well such here take why things help put years different away again "
    "off went old number great tell men say small every found still between name should home big give air line set own "
    "under read last never us left end along while might next sound below saw something thought both few those always "
    "looked show large often together asked house world going want school until form food keep children feet land side "
    "without boy once animals life enough took sometimes four head above kind began almost live page got need far "
    "hand high year mother light parts country father let night following picture being study second eyes soon times"
).split()


class MadeText(NamedTuple):
    text: str
    num_tokens: int | None
    """Number of tokens; None without a tokenizer."""


class Words:
    """Generates texts. The same generator in the same state gives the same text."""

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        self._tokenizer = tokenizer
        self._words = [f" {word}" for word in _COMMON]
        if tokenizer is not None:
            words = _whole_words(tokenizer)
            self._words = words if len(words) >= len(_COMMON) else self._words
        self._costs = {word: self.count(word) or 1 for word in self._words}
        self._dearest = max(self._costs.values())

    def count(self, text: str) -> int | None:
        """Return the number of tokens of a text; None without a tokenizer."""
        return None if self._tokenizer is None else len(self._tokenizer.encode(text, add_special_tokens=False))

    def estimate(self, text: str) -> int:
        """Return the number of tokens, or without a tokenizer the number of words."""
        counted = self.count(text)
        return max(1, len(text.split())) if counted is None else counted

    def make(self, rng: np.random.Generator, num_tokens: int) -> MadeText:
        """Return a text of `num_tokens` tokens, or nearly so if the vocabulary's words do not add up."""
        chosen: list[str] = []
        left, dearest, fitting = num_tokens, self._dearest, self._words
        while fitting and left > 0:
            if dearest > left:
                dearest = left
                fitting = [word for word in fitting if self._costs[word] <= left]
                continue
            indices = rng.integers(len(fitting), size=left // dearest).tolist()
            chosen += [fitting[index] for index in indices]
            left = num_tokens - sum([self._costs[word] for word in chosen])
        text = "".join(chosen or self._words[:1])
        return MadeText(text, self.count(text))


def _whole_words(tokenizer: Tokenizer) -> list[str]:
    """Return words that are one token each, anywhere in a text."""
    words: list[str] = []
    for token_id in np.random.default_rng(0).permutation(tokenizer.vocab_size).tolist():
        text = tokenizer.token_text(token_id)
        if _WORD.fullmatch(text) and tokenizer.encode(text, add_special_tokens=False) == [token_id]:
            words.append(text)
            if len(words) == _ENOUGH_WORDS:
                break
    return sorted(words)
