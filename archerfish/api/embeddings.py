"""The embeddings endpoint: its inputs for the engine and its reply."""

import array
import base64
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from archerfish.api.bodies.common import each_prompt
from archerfish.api.bodies.prompts import EmbeddingBody
from archerfish.api.endpoint_call import EndpointCall
from archerfish.api.model import ServedModel
from archerfish.engine.outputs import OutputStream
from archerfish.engine.pooling import cut_embedding
from archerfish.request import SamplingParams

_PARAMS = SamplingParams(temperature=0.0, max_tokens=1, prompt_embedding=True)


class EmbeddingsCall(EndpointCall):
    """Inputs and their embeddings: the mean of the model's last states over each of them."""

    def __init__(self, model: ServedModel, body: EmbeddingBody) -> None:
        self._model = model
        self._encoding = body.encoding_format
        self._size = body.dimensions
        self._normalizes = body.normalize
        model.check_name(body.model)
        if body.dimensions is not None and model.embedding is not None:
            model.embedding.check(body.dimensions)
        self.inputs = model.processor.inputs(
            each_prompt(body.input),
            replace(_PARAMS, truncate_prompt_tokens=body.truncate_prompt_tokens),
            add_special_tokens=body.add_special_tokens,
            **body.model_dump(include={"priority", "cache_salt", "request_id", "user"}),
        )

    def reply(self, outputs: Sequence[OutputStream]) -> dict[str, Any]:
        data = [
            {"object": "embedding", "index": index, "embedding": self._encoded(output)}
            for index, output in enumerate(outputs)
        ]
        num_tokens = sum(output.usage.num_prompt_tokens for output in outputs)
        used = {"prompt_tokens": num_tokens, "total_tokens": num_tokens}
        return {"object": "list", "data": data, "model": self._model.name, "usage": used}

    def _encoded(self, output: OutputStream) -> list[float] | str:
        values = output.result.prompt_embedding
        assert values is not None, "every prompt that was computed has one"
        values = cut_embedding(values, self._size, self._normalizes)
        return values if self._encoding == "float" else base64.b64encode(array.array("f", values).tobytes()).decode()
