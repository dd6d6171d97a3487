"""Embeddings: what a body asks, and how they are told. Knows no HTTP."""

import array
import base64
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from archerfish.api.ask import Ask
from archerfish.api.bodies.common import GenerationBody, each_prompt
from archerfish.api.bodies.embeddings import EmbeddingBody
from archerfish.api.model import ServedModel
from archerfish.api.writing import Writing
from archerfish.errors import InvalidParameter
from archerfish.request import SamplingParams

_PARAMS = SamplingParams(temperature=0.0, max_tokens=1, prompt_embedding=True)


class Embedding:
    """The mean of the model's last states over each input."""

    def __init__(self, model: ServedModel, body: EmbeddingBody) -> None:
        self._model = model
        self._encoding = body.encoding_format
        self._size = body.dimensions
        self._normalizes = body.normalize
        model.check_name(body.model)
        if body.dimensions is not None:
            _check_size(model, body.dimensions)
        shared = body.model_dump(include={"priority", "cache_salt", "request_id", "user"})
        self.ask = Ask(
            prompts=each_prompt(body.input),
            params=replace(_PARAMS, truncate_prompt_tokens=body.truncate_prompt_tokens),
            body=GenerationBody(**shared),
            add_special_tokens=body.add_special_tokens,
        )

    def reply(self, written: Sequence[Writing]) -> dict[str, Any]:
        data = [
            {"object": "embedding", "index": index, "embedding": self._encoded(one)}
            for index, one in enumerate(written)
        ]
        num_tokens = sum(one.usage.num_prompt_tokens for one in written)
        used = {"prompt_tokens": num_tokens, "total_tokens": num_tokens}
        return {"object": "list", "data": data, "model": self._model.name, "usage": used}

    def _encoded(self, written: Writing) -> list[float] | str:
        values = written.output.prompt_embedding
        assert values is not None, "every prompt that was computed has one"
        is_cut = self._size is not None and self._size < len(values)
        if is_cut:
            values = values[: self._size]
        if is_cut if self._normalizes is None else self._normalizes:
            values = _normalized(values)
        return values if self._encoding == "float" else base64.b64encode(array.array("f", values).tobytes()).decode()


def _check_size(model: ServedModel, size: int) -> None:
    """Refuse to cut what loses its meaning when it is cut."""
    known = model.embedding
    if known is None or size == known.size:
        return
    allowed = f"this model's embeddings have {known.size} numbers"
    if (known.shorter is None and size < known.size) or (known.shorter and size in known.shorter):
        return
    if known.shorter is None:
        raise InvalidParameter("dimensions", size, f"{allowed}: give fewer")
    if known.shorter:
        raise InvalidParameter("dimensions", size, f"{allowed}, or {', '.join(map(str, known.shorter))}")
    allowed += ", and its config.json does not say that it was trained to have them cut (is_matryoshka, or a list"
    raise InvalidParameter("dimensions", size, f"{allowed} matryoshka_dimensions): leave it out")


def _normalized(values: list[float]) -> list[float]:
    """Scale a vector to length 1."""
    length = math.hypot(*values)
    return [value / length if length else 0.0 for value in values]
