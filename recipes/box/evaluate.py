"""Measures the quality of a model: bits per byte of held-out text, and agreement with another model."""

import math
from pathlib import Path

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor

from archerfish.models.decoder import Decoder
from recipes.box.chat import END_OF_TEXT
from recipes.box.model import half_precision, logits_of_rows
from recipes.box.shapes import CONTEXT

DOMAINS = ("simplewiki_val", "gutenberg_children_val", "tinystories_val")
"""Held-out texts of the kinds that the models are trained on."""
ALL_TEXTS = (*DOMAINS, "wikitext2_test")
STRIDE = CONTEXT // 2
"""Windows overlap by half: past the beginning every token is judged with at least this much context."""

_ROWS_AT_ONCE = 32
_UNJUDGED = -100


def bits_per_byte(
    model: Decoder, tokenizer: Tokenizer, path: Path, device: str, most_bytes: int | None = None
) -> float:
    """Return the bits per byte of the documents in a file, or of as many of them as requested."""
    text = path.read_bytes()[:most_bytes].decode(errors="ignore")
    documents = [part.strip() for part in text.split(END_OF_TEXT) if part.strip()]
    inputs, targets = _windows(documents, tokenizer)
    nats = 0.0
    with torch.no_grad(), half_precision(device):
        for first in range(0, len(inputs), _ROWS_AT_ONCE):
            rows = inputs[first : first + _ROWS_AT_ONCE].to(device)
            logits = logits_of_rows(model, rows).flatten(0, 1)
            wanted = targets[first : first + _ROWS_AT_ONCE].to(device).flatten()
            nats += F.cross_entropy(logits, wanted, ignore_index=_UNJUDGED, reduction="sum").item()
    return nats / math.log(2) / sum(len(document.encode()) for document in documents)


def _windows(documents: list[str], tokenizer: Tokenizer) -> tuple[Tensor, Tensor]:
    """Return rows of CONTEXT inputs and targets; every token of every document is a target exactly once."""
    start = tokenizer.token_to_id(END_OF_TEXT)
    inputs, targets = [], []
    for encoding in tokenizer.encode_batch_fast(documents):
        ids = [start, *encoding.ids]
        judged = 0  # Tokens of the document that have been a target.
        first = 0
        while judged < len(ids) - 1:
            piece = ids[first : first + CONTEXT + 1]
            row = [*piece[:-1], *[start] * (CONTEXT + 1 - len(piece))]
            wanted = [*piece[1:], *[_UNJUDGED] * (CONTEXT + 1 - len(piece))]
            skip = judged - first
            wanted[:skip] = [_UNJUDGED] * skip
            inputs.append(row)
            targets.append(wanted)
            judged = first + len(piece) - 1
            first += STRIDE
    return torch.tensor(inputs), torch.tensor(targets)


def evaluate(
    model: Decoder, tokenizer: Tokenizer, data: Path, device: str, most_bytes: int | None = None
) -> dict[str, float]:
    """Return the bits per byte of each held-out text in the directory."""
    paths = {name: data / f"{name}.txt" for name in ALL_TEXTS}
    return {
        name: round(bits_per_byte(model, tokenizer, path, device, most_bytes), 4)
        for name, path in paths.items()
        if path.exists()
    }


def held_out_prompts(tokenizer: Tokenizer, data: Path, num_prompts: int = 96, length: int = 64) -> Tensor:
    """Return beginnings of held-out texts, equally many from each domain, [3 * num_prompts, length]."""
    start = tokenizer.token_to_id(END_OF_TEXT)
    prompts = []
    for domain in DOMAINS:
        text = (data / f"{domain}.txt").read_text(encoding="utf-8")
        documents = text.split(END_OF_TEXT) if END_OF_TEXT in text else text.split("\n\nOnce upon")
        encoded = tokenizer.encode_batch_fast([document.strip()[:2000] for document in documents])
        long_enough = [[start, *one.ids][:length] for one in encoded if len(one.ids) >= length]
        prompts += long_enough[:num_prompts]
    return torch.tensor(prompts)
