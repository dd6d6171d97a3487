"""Owns the text of an answer while its tokens arrive: whole characters only, up to a stop string."""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from archerfish.tokenizer.tokenizer import Tokenizer

_REPLACEMENT = "\ufffd"
"""What decoders write for bytes that are not a character, whether invalid or incomplete."""

_MOST_UNFINISHED = 3
"""A UTF-8 character has at most four bytes, so at most three tokens wait for its last one."""

_NUM_PROMPT_TOKENS = 8
"""Tokens at the end of the prompt that are read: enough to find the start of a character."""


class StopMatch(NamedTuple):
    """A stop string found in a piece of text."""

    stop: str
    end: int
    """Where it ends, counted from the start of the piece. It may have begun in an earlier piece."""


class StopStrings:
    """Reads text character by character and tracks how much of each stop string is at its end.

    This is the search of Knuth, Morris and Pratt, so a character costs the same however long the stop strings are, and
    the result does not depend on how the text is divided into pieces.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        assert all(stops), "an empty stop string is found everywhere"
        # Longest first: of two that end at the same character, the longer one began earlier.
        self._stops = sorted(set(stops), key=lambda stop: (-len(stop), stop))
        self._fallbacks = [_fallbacks(stop) for stop in self._stops]
        self._num_matched = [0] * len(self._stops)

    @property
    def num_open(self) -> int:
        """How many characters at the end of the text may still become a stop string."""
        return max(self._num_matched, default=0)

    def find(self, piece: str, *, may_stop: bool = True) -> StopMatch | None:
        """Read a piece and return the stop string that is complete first, if any. What follows it is not read.

        Without `may_stop` the text is read all the same: a stop string may begin here and end in a later piece.
        """
        if not self._stops:
            return None
        for position, character in enumerate(piece):
            for index, stop in enumerate(self._stops):
                if self._advance(index, stop, character) and may_stop:
                    return StopMatch(stop, position + 1)
        return None

    def _advance(self, index: int, stop: str, character: str) -> bool:
        """Return whether the stop string is complete with this character."""
        fallbacks, matched = self._fallbacks[index], self._num_matched[index]
        while matched and stop[matched] != character:
            matched = fallbacks[matched - 1]
        if stop[matched] == character:
            matched += 1
        is_complete = matched == len(stop)
        self._num_matched[index] = fallbacks[matched - 1] if is_complete else matched
        return is_complete


@lru_cache(maxsize=1024)
def _fallbacks(stop: str) -> list[int]:
    """Return for each prefix of the stop string the length of its longest proper suffix that is also a prefix.

    The lists are shared by all answers with the same stop strings and must not be changed.
    """
    fallbacks = [0]
    length = 0
    for character in stop[1:]:
        while length and stop[length] != character:
            length = fallbacks[length - 1]
        if stop[length] == character:
            length += 1
        fallbacks.append(length)
    return fallbacks


class Piece(NamedTuple):
    """What tokens added to an answer."""

    text: str
    """Text to show now. May be empty while a character or a possible stop string is incomplete."""
    stopped: str | None
    """The stop string that ended the answer, if one did."""
    num_tokens: int
    """How many of the tokens belong to the answer; those after the one that completed the stop string do not."""


class Detokenizer:
    """Turns one sequence's tokens into text, and ends it at a stop string.

    Text is only given out when nothing can change it: neither half a character nor what may still become a stop string.
    As in vLLM, a stop string counts only if it ends in text written after the first `min_tokens` tokens; it may begin
    before. Of several stop strings, the one that is complete first ends the answer; of two that are complete with the
    same character, the one that began earlier.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt_token_ids: Sequence[int],
        *,
        skip_special_tokens: bool = True,
        spaces_between_special_tokens: bool = True,
        stop: tuple[str, ...] = (),
        include_stop_str_in_output: bool = False,
        min_tokens: int = 0,
    ) -> None:
        self._tokens = TokenText(
            tokenizer,
            prompt_token_ids,
            skip_special_tokens=skip_special_tokens,
            spaces_between_special_tokens=spaces_between_special_tokens,
        )
        self._stop_strings = StopStrings(stop)
        self._include_stop = include_stop_str_in_output
        self._min_tokens = min_tokens
        self._num_tokens = 0
        self._shown: list[str] = []
        # The end of the text so far that may still become a stop string.
        self._held = ""
        self._stopped: str | None = None
        self._is_finished = False

    @property
    def text(self) -> str:
        """All text returned so far."""
        self._shown = ["".join(self._shown)]
        return self._shown[0]

    def add(self, token_ids: Sequence[int]) -> Piece:
        """Add the next tokens. After a stop string, further tokens change nothing."""
        assert not self._is_finished or self._stopped is not None, "tokens came after finish"
        texts: list[str] = []
        num_tokens = 0
        for token_id in token_ids:
            if self._stopped is not None:
                break
            num_tokens += 1
            texts.append(self._add_one(token_id))
        return Piece(self._show("".join(texts)), self._stopped, num_tokens)

    def finish(self) -> str:
        """Return the text held back when the sequence ended without a stop string. An incomplete character is
        U+FFFD."""
        if self._is_finished:
            return ""
        self._is_finished = True
        if self._stopped is not None:
            return ""
        return self._show(self._held + self._tokens.finish())

    def _add_one(self, token_id: int) -> str:
        self._num_tokens += 1
        written = self._tokens.add(token_id)
        match = self._stop_strings.find(written, may_stop=self._num_tokens > self._min_tokens)
        if match is not None:
            self._stopped = match.stop
            text = self._held + written[: match.end]
            return text if self._include_stop else text[: -len(match.stop)]
        text = self._held + written
        num_shown = len(text) - self._stop_strings.num_open
        self._held = text[num_shown:]
        return text[:num_shown]

    def _show(self, text: str) -> str:
        if text:
            self._shown.append(text)
        return text


class TokenText:
    """The text of a growing sequence, in whole characters, at a constant cost per token.

    A token's text depends on its neighbours: bytes become a character together, and decoders drop the space before the
    very first token. So a few tokens are decoded again each time: `context`, whose text was returned already, and
    `pending`, of which the first `num_shown` characters were.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt_token_ids: Sequence[int],
        *,
        skip_special_tokens: bool,
        spaces_between_special_tokens: bool = True,
    ) -> None:
        self._tokenizer = tokenizer
        self._skip_special_tokens = skip_special_tokens
        self._added_texts: dict[int, str] = {}
        """Texts of tokens that follow one another without the space that a decoder puts between any two tokens."""
        if not (skip_special_tokens or spaces_between_special_tokens):
            self._added_texts = {token_id: text for text, token_id in tokenizer.added_tokens.items()}
        self._context: list[int] = []
        self._context_text = ""
        self._pending: list[int] = []
        self._num_shown = 0
        self._num_unfinished_in_prompt = 0
        self._read_prompt(self._visible(prompt_token_ids[-4 * _NUM_PROMPT_TOKENS :])[-_NUM_PROMPT_TOKENS:])

    def add(self, token_id: int) -> str:
        """Add one token and return the text that is now final."""
        # A token without text must not become the context: a space is only preserved after other text.
        if not self._visible((token_id,)):
            return ""
        if token_id in self._added_texts and not self._pending and self._follows_added():
            self._context, self._context_text = [token_id], self._decode([token_id])
            return self._of_answer(self._added_texts[token_id])
        self._pending.append(token_id)
        text = self._pending_text(self._pending)
        if not text:
            return self._pass_over()
        num_unfinished = _num_unfinished(text)
        if not num_unfinished:
            return self._of_answer(self._complete(text))
        if len(self._pending) > _MOST_UNFINISHED:
            return self._of_answer(self._let_go(text))
        certain = text[self._num_shown : len(text) - num_unfinished]
        self._num_shown += len(certain)
        return self._of_answer(certain)

    def _follows_added(self) -> bool:
        return bool(self._context) and self._context[-1] in self._added_texts

    def finish(self) -> str:
        """Return the rest of the text, with U+FFFD for a character that stays incomplete."""
        return self._of_answer(self._complete(self._pending_text(self._pending)))

    def _read_prompt(self, token_ids: list[int]) -> None:
        """Make the end of the prompt the context. A character that it leaves incomplete is returned with the answer."""
        text = self._decode(token_ids)
        if _REPLACEMENT not in text:
            self._context, self._context_text = token_ids, text
            return
        for token_id in token_ids:
            self.add(token_id)
        self._num_unfinished_in_prompt = len(self._pending_text(self._pending)) - self._num_shown

    def _of_answer(self, text: str) -> str:
        """Remove what the prompt left incomplete and the answer did not complete: it belongs to the prompt."""
        while text.startswith(_REPLACEMENT) and self._num_unfinished_in_prompt:
            text = text[1:]
            self._num_unfinished_in_prompt -= 1
        if text:
            self._num_unfinished_in_prompt = 0
        return text

    def _pass_over(self) -> str:
        """Skip a pending token without text. It may still affect the next one, as the space that decoders drop."""
        if len(self._context) < _NUM_PROMPT_TOKENS:
            self._context = self._context + self._pending
        self._pending = []
        return ""

    def _complete(self, text: str) -> str:
        """Make all pending tokens the context: their text is final."""
        text = text[self._num_shown :]
        self._context, self._pending, self._num_shown = self._pending, [], 0
        self._context_text = self._decode(self._context)
        return text

    def _let_go(self, text: str) -> str:
        """Return what no later token can change, and drop its tokens: only the last few can be incomplete."""
        for num_recent in range(_MOST_UNFINISHED, 0, -1):
            recent = self._pending[-num_recent:]
            recent_text = self._pending_text(recent)
            if not _num_unfinished(recent_text):
                # Byte fallback decodes a whole run of byte tokens as invalid, with one U+FFFD for each, if any of them
                # is. Without the invalid ones before them, the last tokens are a character.
                wrong = text[self._num_shown : len(text) - num_recent]
                self._pending, self._num_shown = recent, 0
                return wrong + self._complete(recent_text)
        recent = self._pending[-_MOST_UNFINISHED:]
        recent_text = self._pending_text(recent)
        num_not_shown = len(text) - self._num_shown
        num_unfinished = min(_num_unfinished(text), _num_unfinished(recent_text), num_not_shown)
        certain = text[self._num_shown : len(text) - num_unfinished]
        self._pending, self._num_shown = recent, len(recent_text) - num_unfinished
        return certain

    def _pending_text(self, token_ids: list[int]) -> str:
        """Return the text of tokens that follow the context."""
        both = self._decode(self._context + token_ids)
        if not self._context:
            return both
        # Bytes at the end of the context and bytes that follow it are decoded as one run: if that is not valid (yet),
        # the context's own characters are lost, too. A context that is only a dropped space had none.
        has_changed = not both.startswith(self._context_text) if self._context_text else both.startswith(_REPLACEMENT)
        return self._decode(token_ids) if has_changed else both[len(self._context_text) :]

    def _visible(self, token_ids: Sequence[int]) -> list[int]:
        return self._tokenizer.visible(token_ids, self._skip_special_tokens)

    def _decode(self, token_ids: list[int]) -> str:
        return self._tokenizer.decode(token_ids, skip_special_tokens=self._skip_special_tokens)


def _num_unfinished(text: str) -> int:
    """Return how many characters at the end of the text may be bytes of an incomplete character."""
    num_trailing = len(text) - len(text.rstrip(_REPLACEMENT))
    return min(num_trailing, _MOST_UNFINISHED)
