"""The eager backend: a model run operation by operation from Python."""

from torch import Tensor

from archerfish.arch.arch import Arch
from archerfish.execution.step.inputs import StepBatch, step_tensors
from archerfish.execution.step.model import ForwardOutput
from archerfish.execution.step.rows import Rows
from archerfish.kvcache.storage import KVStorage
from archerfish.models.decoder import Decoder
from archerfish.models.eagle import Eagle


class EagerModel:
    """A RunnableModel of plain operations; also returns the inputs of `aux_layers`."""

    def __init__(self, model: Decoder, storage: KVStorage, aux_layers: tuple[int, ...] = ()) -> None:
        self._model = model
        self._storage = storage
        self._aux_layers = aux_layers

    @property
    def arch(self) -> Arch:
        return self._model.arch

    def run(self, batch: StepBatch, rows: Rows) -> ForwardOutput:
        inputs = step_tensors(batch, rows, self._storage.device)
        attend = self._storage.attending(self.arch, inputs.chunks)
        layer_inputs: dict[int, Tensor] = {}
        hidden: Tensor = self._model(inputs.tokens, inputs.positions, attend, layer_inputs.__setitem__)
        aux_hidden_states = tuple(layer_inputs[layer] for layer in self._aux_layers)
        return ForwardOutput(hidden, self._model.logits(hidden[inputs.logit_indices]), aux_hidden_states)

    def logits(self, states: Tensor) -> Tensor:
        return self._model.logits(states)

    def close(self) -> None:
        """Do nothing: there are no threads to stop."""


class EagerEagle:
    """A pass of an EAGLE head, as `record_eagle` records it."""

    def __init__(self, eagle: Eagle, storage: KVStorage, *, joins: bool) -> None:
        self._eagle = eagle
        self._storage = storage
        self._joins = joins

    def run(self, batch: StepBatch, rows: Rows, given: Tensor) -> ForwardOutput:
        eagle = self._eagle
        inputs = step_tensors(batch, rows, self._storage.device)
        attend = self._storage.attending(eagle.spec.arch, inputs.chunks)
        states = eagle.joined(given) if self._joins else given
        hidden: Tensor = eagle(inputs.tokens, inputs.positions, states, attend)
        return ForwardOutput(hidden, eagle.logits(hidden[inputs.logit_indices]))
