"""A model run operation by operation, as torch does it."""

from torch import Tensor

from archerfish.arch.arch import Arch
from archerfish.execution.inputs import Outline, step_tensors
from archerfish.execution.passed import Passed
from archerfish.execution.rows import Rows
from archerfish.kvcache.storage import KVStorage
from archerfish.models.decoder import Decoder


class EagerModel:
    def __init__(self, model: Decoder, storage: KVStorage) -> None:
        self._model = model
        self._storage = storage

    @property
    def arch(self) -> Arch:
        return self._model.arch

    def run(self, outline: Outline, rows: Rows) -> Passed:
        inputs = step_tensors(outline, rows, self._storage.device)
        storage, layers = self._storage, self._model.arch.layers

        def attend(layer: int, q: Tensor, k: Tensor | None, v: Tensor | None) -> Tensor:
            if k is not None and v is not None:
                storage.write(layer, k, v, inputs.chunks)
            spec = layers[layer].attention
            return storage.attend(layer, q, inputs.chunks, spec.scale, spec.window, spec.softcap)

        hidden: Tensor = self._model(inputs.tokens, inputs.positions, attend)
        return Passed(hidden, self._model.logits(hidden[inputs.picked]))

    def logits(self, states: Tensor) -> Tensor:
        return self._model.logits(states)

    def close(self) -> None:
        """It has no threads of its own."""
