"""Encoded documents on disk: one file of token ids for each source, with end-of-text tokens between documents."""

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer

from recipes.box.chat import END_OF_TEXT
from recipes.box.mixture import Source

_AT_ONCE = 4096  # Documents at once: enough for every core, few enough to show progress.


def pack(source: Source, tokenizer: Tokenizer, directory: Path) -> int:
    """Encode a source, and return the number of its tokens."""
    directory.mkdir(parents=True, exist_ok=True)
    end = tokenizer.token_to_id(END_OF_TEXT)
    count = 0
    with (directory / f"{source.name}.bin").open("wb") as file:
        for first in range(0, len(source.documents), _AT_ONCE):
            for encoding in tokenizer.encode_batch_fast(source.documents[first : first + _AT_ONCE]):
                file.write(np.array([*encoding.ids, end], np.uint16).tobytes())
                count += len(encoding.ids) + 1
    weights = {"weight": source.weight, "final_weight": source.final_weight, "num_tokens": count}
    (directory / f"{source.name}.json").write_text(json.dumps(weights))
    print(f"{source.name:<14} {count / 1e6:8.2f} M tokens", flush=True)
    return count


class Packed:
    """All packed sources in one row of tokens, and how often to draw from each."""

    def __init__(self, directory: Path, final_weights: Mapping[str, float] | None = None) -> None:
        self.names = sorted(path.stem for path in directory.glob("*.bin"))
        assert self.names, f"nothing is packed in {directory}"
        parts = [np.fromfile(directory / f"{name}.bin", np.uint16).astype(np.int32) for name in self.names]
        settings = [json.loads((directory / f"{name}.json").read_text()) for name in self.names]
        for name, weight in (final_weights or {}).items():
            assert name in self.names, f"there is no source {name}; there are {', '.join(self.names)}"
            settings[self.names.index(name)]["final_weight"] = weight
        self.tokens = torch.from_numpy(np.concatenate(parts))
        self.lengths = torch.tensor([len(part) for part in parts])
        self.starts = self.lengths.cumsum(0) - self.lengths
        self.documents = _beginnings(self.tokens)
        """Start of each document, in order."""
        weights = [[one[key] for one in settings] for key in ("weight", "final_weight")]
        self.shares = [self.lengths * torch.tensor(one) for one in weights]
        """Shares of sources in the main and in the last phase; not normalized."""


def _beginnings(tokens: torch.Tensor) -> torch.Tensor:
    """Return the positions after end-of-text tokens, which are token 0, and the very first."""
    after = torch.nonzero(tokens == 0).flatten() + 1
    return torch.cat((torch.zeros(1, dtype=after.dtype), after[:-1]))
