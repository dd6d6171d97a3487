"""A model run operation by operation, as torch does it."""

from torch import Tensor

from archerfish.arch.arch import Arch
from archerfish.execution.step.inputs import Outline, step_tensors
from archerfish.execution.step.model import Passed
from archerfish.execution.step.rows import Rows
from archerfish.kvcache.storage import KVStorage
from archerfish.models.decoder import Decoder
from archerfish.models.eagle import Eagle


class EagerModel:
    def __init__(self, model: Decoder, storage: KVStorage, taps: tuple[int, ...] = ()) -> None:
        """Taps are the layers whose input is told of."""
        self._model = model
        self._storage = storage
        self._taps = taps

    @property
    def arch(self) -> Arch:
        return self._model.arch

    def run(self, outline: Outline, rows: Rows) -> Passed:
        inputs = step_tensors(outline, rows, self._storage.device)
        attend = self._storage.attending(self.arch, inputs.chunks)
        heard: dict[int, Tensor] = {}
        hidden: Tensor = self._model(inputs.tokens, inputs.positions, attend, heard.__setitem__)
        taps = tuple(heard[layer] for layer in self._taps)
        return Passed(hidden, self._model.logits(hidden[inputs.picked]), taps)

    def logits(self, states: Tensor) -> Tensor:
        return self._model.logits(states)

    def close(self) -> None:
        """It has no threads of its own."""


class EagerEagle:
    """A pass of a head, as `record_eagle` records it."""

    def __init__(self, eagle: Eagle, storage: KVStorage, *, joins: bool) -> None:
        self._eagle = eagle
        self._storage = storage
        self._joins = joins

    def run(self, outline: Outline, rows: Rows, given: Tensor) -> Passed:
        eagle = self._eagle
        inputs = step_tensors(outline, rows, self._storage.device)
        attend = self._storage.attending(eagle.spec.arch, inputs.chunks)
        states = eagle.joined(given) if self._joins else given
        hidden: Tensor = eagle(inputs.tokens, inputs.positions, states, attend)
        return Passed(hidden, eagle.logits(hidden[inputs.picked]))
