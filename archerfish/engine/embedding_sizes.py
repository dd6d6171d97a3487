"""How many numbers an embedding may have, and how a longer one is cut. Knows no request."""

import math
from typing import NamedTuple

from archerfish.errors import InvalidParameter


class EmbeddingSizes(NamedTuple):
    """The numbers of an embedding: as the model makes it, and what it can be cut to."""

    size: int
    """As the model makes it."""
    shorter: tuple[int, ...] | None = ()
    """What it can also be cut to without losing its meaning (Matryoshka); None is every size."""

    def check(self, size: int) -> None:
        """Refuse to cut what loses its meaning when it is cut."""
        can_be_cut = size < self.size if self.shorter is None else size in self.shorter
        if size == self.size or can_be_cut:
            return
        allowed = f"this model's embeddings have {self.size} numbers"
        if self.shorter is None:
            raise InvalidParameter("dimensions", size, f"{allowed}: give fewer")
        if self.shorter:
            raise InvalidParameter("dimensions", size, f"{allowed}, or {', '.join(map(str, self.shorter))}")
        allowed += ", and its config.json does not say that it was trained to have them cut (is_matryoshka, or a list"
        raise InvalidParameter("dimensions", size, f"{allowed} matryoshka_dimensions): leave it out")


def cut_embedding(values: list[float], size: int | None, normalize: bool | None) -> list[float]:
    """Return the first `size` numbers of an embedding, scaled to length 1 where `normalize` says so.

    By default (None) what was cut is scaled, and what was not is as the model made it.
    """
    is_cut = size is not None and size < len(values)
    if is_cut:
        values = values[:size]
    if not (is_cut if normalize is None else normalize):
        return values
    length = math.hypot(*values)
    return [value / length if length else 0.0 for value in values]
