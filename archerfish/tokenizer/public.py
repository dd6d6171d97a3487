"""The tokenizer with the methods and defaults of vLLM and transformers, without padding."""

from collections.abc import Generator, Mapping, Sequence
from typing import Any, Literal

from archerfish.errors import InvalidParameter
from archerfish.tokenizer.tokenizer import Tokenizer

Message = Mapping[str, Any]
Tensors = Literal["pt", "np"]


class Encoding(dict[str, Any]):
    """input_ids and attention_mask, as keys and as attributes."""

    def __getattr__(self, name: str) -> Any:
        if name not in self:
            raise AttributeError(name)
        return self[name]


class PublicTokenizer:
    """What LLM.get_tokenizer returns. As in transformers, and unlike the engine's own tokenizer, decoding shows special
    tokens by default."""

    def __init__(self, tokenizer: Tokenizer, name_or_path: str) -> None:
        self._tokenizer = tokenizer
        self.name_or_path = name_or_path
        self._pad_token = tokenizer.special_tokens.get("pad_token")

    def __await__(self) -> Generator[None, None, "PublicTokenizer"]:
        """Return the tokenizer itself: AsyncLLM.get_tokenizer may be awaited, as in earlier releases of vLLM."""
        yield from ()
        return self

    # -- text to token ids ----------------------------------------------------------------------------------------

    def encode(
        self, text: str, *, add_special_tokens: bool = True, truncation: bool = False, max_length: int | None = None
    ) -> list[int]:
        """Return the token ids of a text; with `truncation` the first `max_length` of them."""
        token_ids = self._tokenizer.encode(text, add_special_tokens=add_special_tokens)
        if truncation and max_length is None:
            raise InvalidParameter("max_length", None, "truncation needs it")
        return token_ids[:max_length] if truncation else token_ids

    def __call__(
        self, text: str | Sequence[str], *, return_tensors: Tensors | None = None, **options: Any
    ) -> "Encoding":
        """Return input_ids and attention_mask of a text, or lists of both for several. Texts are never padded."""
        if options.pop("padding", False):
            raise InvalidParameter("padding", True, "the engine needs none; leave it out")
        if isinstance(text, str):
            token_ids: Any = self.encode(text, **options)
            mask: Any = [1] * len(token_ids)
        else:
            token_ids = [self.encode(part, **options) for part in text]
            mask = [[1] * len(ids) for ids in token_ids]
        return Encoding(input_ids=_as_array(token_ids, return_tensors), attention_mask=_as_array(mask, return_tensors))

    def tokenize(self, text: str) -> list[str]:
        """Return the tokens of a text as the vocabulary spells them."""
        return [self._token(token_id) for token_id in self.encode(text, add_special_tokens=False)]

    # -- token ids to text ----------------------------------------------------------------------------------------

    def decode(self, token_ids: Any, skip_special_tokens: bool = False) -> str:
        """Return the text of token ids: a list, an array, or a single one."""
        listed = token_ids.tolist() if hasattr(token_ids, "tolist") else token_ids
        listed = [listed] if isinstance(listed, int) else list(listed)
        return self._tokenizer.decode(listed, skip_special_tokens=skip_special_tokens)

    def batch_decode(self, sequences: Any, skip_special_tokens: bool = False) -> list[str]:
        """Return the text of each of several lists of token ids."""
        return [self.decode(sequence, skip_special_tokens) for sequence in sequences]

    # -- chats ----------------------------------------------------------------------------------------------------

    def apply_chat_template(
        self,
        conversation: Sequence[Message] | Sequence[Sequence[Message]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template: str | None = None,
        add_generation_prompt: bool = False,
        continue_final_message: bool = False,
        tokenize: bool = True,
        return_tensors: Tensors | None = None,
        return_dict: bool = False,
        **variables: Any,
    ) -> Any:
        """Render a conversation, or each of several, by the model's template: token ids, or text without `tokenize`.

        `variables` are for the template, such as enable_thinking.
        """
        template = self._tokenizer.chat_template
        if chat_template is not None:
            template = self._tokenizer.other_template(chat_template)
        if add_generation_prompt and continue_final_message:
            allowed = "the final message is either continued or answered; leave add_generation_prompt out"
            raise InvalidParameter("continue_final_message", True, allowed)
        is_one = bool(conversation) and isinstance(conversation[0], Mapping)
        options = {"add_generation_prompt": add_generation_prompt, "continue_final_message": continue_final_message}
        texts = [
            template.render(messages, tools=tools, **options, **variables)  # type: ignore[arg-type]
            for messages in ([conversation] if is_one else conversation)
        ]
        if not tokenize:
            return texts[0] if is_one else texts
        encoding = self(texts[0] if is_one else texts, add_special_tokens=False, return_tensors=return_tensors)
        return encoding if return_dict else encoding.input_ids

    @property
    def chat_template(self) -> str | None:
        """The template's source; None where the model has none."""
        return self._tokenizer.chat_template.text

    # -- the vocabulary -------------------------------------------------------------------------------------------

    @property
    def vocab_size(self) -> int:
        """Number of tokens, without those that were added to the vocabulary: len() counts these too."""
        return self._tokenizer.num_tokens(with_added=False)

    def __len__(self) -> int:
        return self._tokenizer.num_tokens(with_added=True)

    @property
    def max_token_id(self) -> int:
        return self._tokenizer.vocab_size - 1

    def get_vocab(self) -> dict[str, int]:
        """Return the id of each token."""
        return self._tokenizer.vocabulary()

    def convert_tokens_to_ids(self, tokens: str | Sequence[str]) -> Any:
        """Return the id of a token, or of each of several; None for tokens that are not in the vocabulary."""
        if isinstance(tokens, str):
            return self._tokenizer.token_id(tokens)
        return [self._tokenizer.token_id(token) for token in tokens]

    def convert_ids_to_tokens(self, ids: int | Sequence[int]) -> Any:
        """Return a token as the vocabulary spells it, or each of several."""
        return self._token(ids) if isinstance(ids, int) else [self._token(token_id) for token_id in ids]

    def _token(self, token_id: int) -> Any:
        return self._tokenizer.token(token_id)

    # -- special tokens -------------------------------------------------------------------------------------------

    @property
    def all_special_ids(self) -> list[int]:
        return sorted(self._tokenizer.special_token_ids)

    @property
    def all_special_tokens(self) -> list[str]:
        return [self._token(token_id) for token_id in self.all_special_ids]

    @property
    def special_tokens_map(self) -> dict[str, str]:
        special = dict(self._tokenizer.special_tokens)
        return special if self._pad_token is None else {**special, "pad_token": self._pad_token}

    @property
    def bos_token(self) -> str | None:
        return self._tokenizer.special_tokens.get("bos_token")

    @property
    def eos_token(self) -> str | None:
        return self._tokenizer.special_tokens.get("eos_token")

    @property
    def pad_token(self) -> str | None:
        """The token that programs pad with. It can be set, as they do where the model names none: nothing here pads."""
        return self._pad_token

    @pad_token.setter
    def pad_token(self, token: str | None) -> None:
        if token is not None and self._tokenizer.token_id(token) is None:
            raise InvalidParameter("pad_token", token, "it must be a token of the vocabulary, such as eos_token")
        self._pad_token = token

    @property
    def unk_token(self) -> str | None:
        return self._tokenizer.special_tokens.get("unk_token")

    @property
    def bos_token_id(self) -> int | None:
        return self._tokenizer.bos_token_id

    @property
    def eos_token_id(self) -> int | None:
        return self._tokenizer.eos_token_id

    @property
    def pad_token_id(self) -> int | None:
        return None if self._pad_token is None else self._tokenizer.token_id(self._pad_token)

    @pad_token_id.setter
    def pad_token_id(self, token_id: int | None) -> None:
        token = None if token_id is None else self._token(token_id)
        if token is None and token_id is not None:
            raise InvalidParameter("pad_token_id", token_id, "it must be the id of a token, such as eos_token_id")
        self._pad_token = token

    @property
    def unk_token_id(self) -> int | None:
        return None if self.unk_token is None else self._tokenizer.token_id(self.unk_token)


def _as_array(values: list[Any], kind: Tensors | None) -> Any:
    """Return lists unchanged, or as a tensor or array with a row for each text."""
    if kind is None:
        return values
    rows = values if values and isinstance(values[0], list) else [values]
    if len({len(row) for row in rows}) > 1:
        allowed = "the texts have different numbers of tokens, and none is padded; leave it out"
        raise InvalidParameter("return_tensors", kind, allowed)
    if kind == "np":
        import numpy as np

        return np.array(rows)
    if kind == "pt":
        from importlib import import_module

        # Imported by name: a tokenizer does not need torch.
        return import_module("torch").tensor(rows)
    raise InvalidParameter("return_tensors", kind, 'it must be "pt" or "np"')
