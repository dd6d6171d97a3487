"""Owns the vocabulary: text to token ids and back."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tokenizers
from tokenizers.processors import TemplateProcessing

from archerfish.errors import RequestError, TokenizerError
from archerfish.tokenizer.files import parse_json, read_json_object, read_text

if TYPE_CHECKING:
    from archerfish.tokenizer.chat import ChatTemplate

_OLDER_FORMATS = ("tokenizer.model", "vocab.json", "vocab.txt", "spiece.model", "tekken.json", "tiktoken.model")

# Ordinary texts, tried in turn, because a small vocabulary may lack any one of them.
_ORDINARY_TEXTS = ("a", "0", ".", " ")

_LONG = 2048  # Characters. Tokenizing them takes about a millisecond.

_TOKEN_OPTIONS = ("lstrip", "rstrip", "normalized", "single_word", "special")


class Tokenizer:
    """A model's tokenizer. Immutable after loading, so threads may share it.

    Decoding returns the text as the vocabulary has it: `clean_up_tokenization_spaces` of older configurations, which
    drops spaces before punctuation, is not applied, since it would change what the model wrote.
    """

    def __init__(
        self, vocabulary: tokenizers.Tokenizer, special_tokens: Mapping[str, str], chat_template: "ChatTemplate"
    ) -> None:
        """`special_tokens` are named as in tokenizer_config.json: bos_token, eos_token, pad_token, ..."""
        self._vocabulary = vocabulary
        self._special_tokens = dict(special_tokens)
        self._chat_template = chat_template
        # The largest id counts, not the number of tokens: vocabularies can have holes.
        self._vocab_size = 1 + max(vocabulary.get_vocab(with_added_tokens=True).values())
        self._special_token_ids = frozenset(
            token_id for token_id, token in vocabulary.get_added_tokens_decoder().items() if token.special
        )
        self._bos_token_id = _named_token_id(vocabulary, special_tokens, "bos_token")
        self._eos_token_id = _named_token_id(vocabulary, special_tokens, "eos_token")
        self._ordinary_token_id = _ordinary_token_id(vocabulary)
        self._texts: dict[int, str] = {}
        """Cached texts of single tokens: log-probabilities list several per token."""

    @classmethod
    def load(cls, directory: Path, chat_template: str | None = None) -> "Tokenizer":
        """Load tokenizer.json and, where present, tokenizer_config.json and special_tokens_map.json next to it.

        `chat_template` replaces the directory's: a file, or the template itself.
        """
        vocabulary = _load_vocabulary(directory)
        config_path = directory / "tokenizer_config.json"
        config = read_json_object(config_path)
        special_tokens = _named_special_tokens(config, read_json_object(directory / "special_tokens_map.json"))
        _declare_tokens(vocabulary, config, special_tokens, config_path)
        if config.get("split_special_tokens") is True:
            vocabulary.encode_special_tokens = True
        _frame(vocabulary, config, special_tokens)
        # It imports jinja2, which takes a good part of a start; engines without a tokenizer do not need it.
        from archerfish.tokenizer.chat import ChatTemplate

        if chat_template is not None:
            return cls(vocabulary, special_tokens, ChatTemplate.given(chat_template, special_tokens))
        return cls(vocabulary, special_tokens, ChatTemplate.load(directory, special_tokens))

    @property
    def vocab_size(self) -> int:
        """One more than the largest token id. The model may have more, to round its matrices."""
        return self._vocab_size

    @property
    def bos_token_id(self) -> int | None:
        return self._bos_token_id

    @property
    def eos_token_id(self) -> int | None:
        return self._eos_token_id

    @property
    def special_token_ids(self) -> frozenset[int]:
        """Tokens that control the model and are not text, such as the end of an answer."""
        return self._special_token_ids

    @property
    def special_tokens(self) -> Mapping[str, str]:
        """Texts of the special tokens that have a name: bos_token, eos_token, pad_token, ..."""
        return dict(self._special_tokens)

    @property
    def has_chat_template(self) -> bool:
        return self._chat_template.is_present

    @property
    def chat_template(self) -> "ChatTemplate":
        """The template that turns messages into a prompt. Rendering raises TokenizerError if the model has none."""
        return self._chat_template

    def other_template(self, text: str) -> "ChatTemplate":
        """Return a chat template of the caller's own, which writes this model's special tokens."""
        from archerfish.tokenizer.chat import ChatTemplate

        return ChatTemplate({"default": text}, self._special_tokens, origin="the request")

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Return the token ids of a text, by default with the tokens that the model expects around it.

        A rendered chat template already has those: encode it with `add_special_tokens=False`.
        """
        if not isinstance(text, str):
            raise RequestError(f"only text can be tokenized, but this is a {type(text).__name__}")
        try:
            if len(text) > _LONG:
                # Only encode_batch releases the GIL.
                [encoded] = self._vocabulary.encode_batch([text], add_special_tokens=add_special_tokens)
                return encoded.ids
            return self._vocabulary.encode(text, add_special_tokens=add_special_tokens).ids
        # The library raises plain exceptions: this text has characters that the vocabulary does not know, or half of a
        # surrogate pair.
        except Exception as error:
            raise RequestError(_why_not_encoded(text, error)) from error

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Return the text of token ids. Ids that are not in the vocabulary have no text."""
        return self._vocabulary.decode(self.visible(token_ids, skip_special_tokens), skip_special_tokens=False)

    def visible(self, token_ids: Iterable[int], skip_special_tokens: bool = True) -> list[int]:
        """Return those of the tokens that `decode` turns into text."""
        hidden = self._special_token_ids if skip_special_tokens else frozenset()
        return [token_id for token_id in token_ids if 0 <= token_id < self._vocab_size and token_id not in hidden]

    def to_json(self) -> str:
        """Return a tokenizer.json, including what the configuration adds."""
        return self._vocabulary.to_str()

    @property
    def added_tokens(self) -> Mapping[str, int]:
        """Tokens that match a whole text wherever it occurs, special or not, by that text."""
        return {token.content: token_id for token_id, token in self._vocabulary.get_added_tokens_decoder().items()}

    def vocabulary(self) -> dict[str, int]:
        """The id of each token, by its spelling in the vocabulary."""
        return self._vocabulary.get_vocab(with_added_tokens=True)

    def num_tokens(self, *, with_added: bool) -> int:
        """Return the number of tokens, with or without those that were added to the vocabulary."""
        return self._vocabulary.get_vocab_size(with_added_tokens=with_added)

    def token(self, token_id: int) -> str | None:
        """Return a token as the vocabulary spells it; None if there is none with this id."""
        return self._vocabulary.id_to_token(token_id)

    def token_id(self, token: str) -> int | None:
        """Return the id of a token as the vocabulary spells it; None if there is none."""
        return self._vocabulary.token_to_id(token)

    def token_text(self, token_id: int) -> str:
        """Return the text of one token within other text: with its leading space, special tokens by name.

        A token with only part of a character shows U+FFFD for it.
        """
        text = self._texts.get(token_id)
        if text is None:
            text = self._find_text(token_id)
            if 0 <= token_id < self._vocab_size:
                self._texts[token_id] = text
        return text

    def _find_text(self, token_id: int) -> str:
        alone = self.decode([token_id], skip_special_tokens=False)
        if token_id in self._special_token_ids or self._ordinary_token_id is None:
            return alone
        # Decoders drop the space before the first token of a text, so decode the token after another one.
        before = self.decode([self._ordinary_token_id], skip_special_tokens=False)
        both = self.decode([self._ordinary_token_id, token_id], skip_special_tokens=False)
        return both[len(before) :] if both.startswith(before) else alone


def _load_vocabulary(directory: Path) -> tokenizers.Tokenizer:
    path = directory / "tokenizer.json"
    text = read_text(path)
    if text is None:
        raise TokenizerError(_why_missing(directory))
    try:
        vocabulary = tokenizers.Tokenizer.from_str(text)
    # The library raises plain exceptions for any problem.
    except Exception as error:
        if not isinstance(parse_json(path, text), dict):
            raise TokenizerError(f"{path} does not hold a JSON object: save the tokenizer again") from None
        message = f"{path} is not a tokenizer that the tokenizers library {tokenizers.__version__} can read ({error})"
        raise TokenizerError(f"{message}: upgrade tokenizers, or save the tokenizer again") from error
    if vocabulary.get_vocab_size(with_added_tokens=True) == 0:
        raise TokenizerError(f"{path} has an empty vocabulary: save the tokenizer again")
    # Files store how the tokenizer was last called; a prompt must never be truncated or padded silently.
    vocabulary.no_truncation()
    vocabulary.no_padding()
    return vocabulary


def _why_missing(directory: Path) -> str:
    older = [name for name in _OLDER_FORMATS if (directory / name).is_file()]
    if not older:
        return f"{directory} has no tokenizer.json: copy it there from where the model came from"
    convert = "transformers.AutoTokenizer.from_pretrained(directory).save_pretrained(directory)"
    return f"{directory} has {older[0]} but no tokenizer.json: convert it once with {convert}"


def _why_not_encoded(text: str, error: Exception) -> str:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as surrogate:
        code = ord(text[surrogate.start])
        return (
            f"the text has half of a surrogate pair (U+{code:04X} at character {surrogate.start}), "
            "which is not a character: send valid Unicode"
        )
    return f"this tokenizer cannot encode the text: {error}"


def _named_special_tokens(config: Mapping[str, Any], legacy_map: Mapping[str, Any]) -> dict[str, str]:
    """Return texts by name. special_tokens_map.json is the older file: it only overrides configurations as old as
    itself."""
    merged = {**legacy_map, **config} if "added_tokens_decoder" in config else {**config, **legacy_map}
    named = {name: value for name, value in merged.items() if name.endswith("_token")}
    extra = merged.get("extra_special_tokens")
    if isinstance(extra, dict):
        named.update(extra)
    return {name: text for name, value in named.items() if (text := _token_content(value)) is not None}


def _named_token_id(vocabulary: tokenizers.Tokenizer, special_tokens: Mapping[str, str], name: str) -> int | None:
    return vocabulary.token_to_id(special_tokens[name]) if name in special_tokens else None


def _token_content(value: object) -> str | None:
    """Return a token's text, which configurations write as a string or as an object with its properties."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) and value else None


def _declare_tokens(
    vocabulary: tokenizers.Tokenizer, config: Mapping[str, Any], special_tokens: Mapping[str, str], config_path: Path
) -> None:
    """Add what the configuration says about tokens: some that the vocabulary lacks, and which are special."""
    special = list(special_tokens.values())
    try:
        declared = config.get("added_tokens_decoder", {})
        for token_id in sorted(map(int, declared)):
            token = declared[str(token_id)]
            options = {name: bool(token[name]) for name in _TOKEN_OPTIONS if name in token}
            added = tokenizers.AddedToken(token["content"], **options)
            # Where a new token would get another id than declared, the model has no row for it.
            if vocabulary.token_to_id(added.content) is None and token_id == vocabulary.get_vocab_size():
                vocabulary.add_tokens([added])
            if added.special:
                special.append(added.content)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        message = f"{config_path} has an added_tokens_decoder that is not understood ({error})"
        raise TokenizerError(f"{message}: it must map token ids to objects with a content") from error
    for key in ("additional_special_tokens", "extra_special_tokens"):
        values = config.get(key)
        if isinstance(values, list):
            special.extend(text for value in values if (text := _token_content(value)) is not None)
    known = vocabulary.get_added_tokens_decoder()
    for text in dict.fromkeys(special):
        known_id = vocabulary.token_to_id(text)
        if known_id is None:
            continue
        added = known.get(known_id) or tokenizers.AddedToken(text, normalized=False)
        added.special = True
        vocabulary.add_special_tokens([added])


def _frame(vocabulary: tokenizers.Tokenizer, config: Mapping[str, Any], special_tokens: Mapping[str, str]) -> None:
    """Put BOS before and EOS after every text, or remove them, where the configuration says so explicitly."""
    before, after = framing = _framing(vocabulary)
    bos_token_id = _named_token_id(vocabulary, special_tokens, "bos_token")
    eos_token_id = _named_token_id(vocabulary, special_tokens, "eos_token")
    if bos_token_id is not None and config.get("add_bos_token") is (bos_token_id not in before):
        missing = [bos_token_id] if bos_token_id not in before else []
        before = [*missing, *(token_id for token_id in before if token_id != bos_token_id)]
    if eos_token_id is not None and config.get("add_eos_token") is (eos_token_id not in after):
        missing = [eos_token_id] if eos_token_id not in after else []
        after = [*(token_id for token_id in after if token_id != eos_token_id), *missing]
    if (before, after) == framing:
        return
    groups = {name: token_ids for name, token_ids in (("before", before), ("after", after)) if token_ids}
    pieces = [name for name in ("before", "$A", "after") if name in groups or name == "$A"]
    vocabulary.post_processor = TemplateProcessing(
        single=pieces,
        pair=[*pieces, "$B:1"],
        special_tokens=[
            {"id": name, "ids": token_ids, "tokens": [vocabulary.id_to_token(token_id) for token_id in token_ids]}
            for name, token_ids in groups.items()
        ],
    )


def _framing(vocabulary: tokenizers.Tokenizer) -> tuple[list[int], list[int]]:
    """Return the tokens that the vocabulary itself puts before and after every text."""
    for text in _ORDINARY_TEXTS:
        encoding = _try_encode(vocabulary, text)
        if encoding is not None and 0 in encoding.special_tokens_mask:
            start = encoding.special_tokens_mask.index(0)
            end = len(encoding.ids) - encoding.special_tokens_mask[::-1].index(0)
            return encoding.ids[:start], encoding.ids[end:]
    return [], []


def _ordinary_token_id(vocabulary: tokenizers.Tokenizer) -> int | None:
    """Return a token of plain text, to be put before others."""
    for text in _ORDINARY_TEXTS:
        encoding = _try_encode(vocabulary, text)
        for token_id in encoding.ids if encoding is not None else ():
            if vocabulary.decode([token_id], skip_special_tokens=True):
                return token_id
    return None


def _try_encode(vocabulary: tokenizers.Tokenizer, text: str) -> tokenizers.Encoding | None:
    # A vocabulary without a token for unknown characters refuses the text with a plain exception.
    with suppress(Exception):
        return vocabulary.encode(text)
    return None
