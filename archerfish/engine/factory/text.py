"""Builds what requests and texts need to know of a model: its tokenizer, special tokens and recommended parameters."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from archerfish.config.compatibility import shown_value
from archerfish.config.resolve import ResolvedConfig
from archerfish.config.settings import EngineConfig
from archerfish.engine.models import Checkpoint
from archerfish.errors import InvalidParameter, ModelError
from archerfish.request import SamplingParams
from archerfish.tokenizer import Tokenizer
from archerfish.weights.locate import locate


@dataclass(frozen=True, slots=True)
class TextSettings:
    """What a checkpoint says of texts and requests."""

    tokenizer_directory: Path | None
    """None where prompts and answers are token ids."""
    tokenizer: Tokenizer | None
    eos_token_ids: tuple[int, ...]
    """Every token that ends an answer."""
    start_token_id: int
    """First token of a text without a prompt."""
    recommended: Mapping[str, Any]
    """Sampling parameters that the model's makers recommend, by name."""
    embedding_sizes: tuple[int, ...] | None
    """Sizes that embeddings can be cut to, as config.json lists them; None means any size."""


def read_text_settings(config: EngineConfig, resolved: ResolvedConfig, checkpoint: Checkpoint) -> TextSettings:
    """Read them from the checkpoint's files. Every error that a user can fix is raised here."""
    generation_path = checkpoint.directory / "generation_config.json"
    recommended = _recommended(checkpoint.generation, generation_path, resolved.max_model_len)
    directory = _tokenizer_directory(config, checkpoint)
    tokenizer = None if directory is None else Tokenizer.load(directory, config.chat_template)
    eos_token_ids = _eos_token_ids(checkpoint, tokenizer)
    return TextSettings(
        tokenizer_directory=directory,
        tokenizer=tokenizer,
        eos_token_ids=eos_token_ids,
        start_token_id=_start_token_id(checkpoint, eos_token_ids),
        recommended=recommended,
        embedding_sizes=_embedding_sizes(checkpoint),
    )


def _tokenizer_directory(config: EngineConfig, checkpoint: Checkpoint) -> Path | None:
    """None where prompts and answers are token ids."""
    if config.skip_tokenizer_init:
        return None
    if config.tokenizer is not None:
        return locate(config.tokenizer, weights=False)
    if config.load_format == "dummy" and not (checkpoint.directory / "tokenizer.json").exists():
        return None  # config.json alone is enough for random weights.
    return checkpoint.directory


def _eos_token_ids(checkpoint: Checkpoint, tokenizer: Tokenizer | None) -> tuple[int, ...]:
    """Every token the model can end with, whichever file names it."""
    inner = checkpoint.config.get("text_config") or {}
    found: set[int] = set()
    for value in (
        checkpoint.generation.get("eos_token_id"),
        checkpoint.config.get("eos_token_id"),
        inner.get("eos_token_id"),
    ):
        listed = [value] if isinstance(value, int) else value or []
        if not isinstance(listed, list) or not all(isinstance(token, int) for token in listed):
            raise ModelError(
                f"{checkpoint.directory}: eos_token_id = {shown_value(value)} must be a token id or a list of them"
            )
        found.update(listed)
    if tokenizer is not None and tokenizer.eos_token_id is not None:
        found.add(tokenizer.eos_token_id)
    # Files also name tokens that the model has no row for: it never writes them, so there is nothing to bar.
    return tuple(sorted(token for token in found if 0 <= token < checkpoint.arch.vocab_size))


def _embedding_sizes(checkpoint: Checkpoint) -> tuple[int, ...] | None:
    sizes = checkpoint.config.get("matryoshka_dimensions")
    if isinstance(sizes, list):
        return tuple(size for size in sizes if isinstance(size, int) and 0 < size < checkpoint.arch.hidden_size)
    return None if checkpoint.config.get("is_matryoshka") is True else ()


def _start_token_id(checkpoint: Checkpoint, eos: tuple[int, ...]) -> int:
    """What texts begin with: the token named for it, else one that ends them, as between training texts."""
    inner = checkpoint.config.get("text_config") or {}
    named = (checkpoint.config.get("bos_token_id"), inner.get("bos_token_id"), *eos, 0)
    return next(token for token in named if isinstance(token, int) and 0 <= token < checkpoint.arch.vocab_size)


def _recommended(generation: Mapping[str, Any], path: Path, max_model_len: int) -> dict[str, Any]:
    names = {"temperature": "temperature", "top_k": "top_k", "top_p": "top_p", "min_p": "min_p"}
    names |= {"repetition_penalty": "repetition_penalty", "max_new_tokens": "max_tokens"}
    given = {ours: generation[theirs] for theirs, ours in names.items() if generation.get(theirs) is not None}
    if generation.get("do_sample") is False:
        given["temperature"] = 0.0
    try:
        SamplingParams.from_dict(given)  # A value that makes no sense shows now, not at the first request.
    except InvalidParameter as error:
        raise ModelError(f"{path}: {error}") from error
    if "max_tokens" in given:
        # Requests may not exceed the context; the file does not know how long a context is served.
        given["max_tokens"] = min(given["max_tokens"], max_model_len)
    return given
