"""Puts weights into a model for native kernels: matrices packed in their run-time format, the rest float32."""

from collections import defaultdict
from typing import Any

from torch import Tensor, nn

from archerfish.models.decoder import Decoder, Experts
from archerfish.models.eagle import Eagle
from archerfish.models.layers import Embedding, Linear
from archerfish.models.medusa import Medusa
from archerfish.ops.packed import PackedExperts, PackedWeight, pack_experts, pack_floats
from archerfish.quant import InputStatistics, WeightFormat
from archerfish.weights.weight_arena import WeightArena

ROUTER_BYTES = 4
"""Bytes of a router's number where other matrices are rounded: it stays float32."""


Network = Decoder | Eagle | Medusa
"""A model, or a drafter. Modules that a drafter shares with the model are not among its own parameters."""


class ParameterOwners:
    """Modules that own each parameter of a model, by the parameter's name. A tied head has two owners."""

    def __init__(self, model: Network) -> None:
        by_parameter: dict[int, list[tuple[nn.Module, str]]] = defaultdict(list)
        for module in model.modules():
            for name, parameter in module.named_parameters(recurse=False):
                by_parameter[id(parameter)].append((module, name))
        self._owners = {name: by_parameter[id(parameter)] for name, parameter in model.named_parameters()}

    def modules(self, name: str) -> list[nn.Module]:
        return [module for module, _ in self._owners[name]]

    def replace(self, name: str, value: Any) -> None:
        """Put a value in place of the parameter, in all of its owners."""
        for module, field in self._owners[name]:
            delattr(module, field)
            setattr(module, field, value)


class Packer:
    """Takes each parameter once it is filled, so that no more than one of them is in memory in full."""

    def __init__(self, model: Network, weight_format: WeightFormat) -> None:
        self._vocabulary = model.vocabulary
        self._format = weight_format
        self._arena = WeightArena()
        self._owners = ParameterOwners(model)
        self._routers = [module.router for module in model.modules() if isinstance(module, Experts)]

    def __call__(self, name: str, tensor: Tensor, inputs: InputStatistics | None = None) -> None:
        """Pack a parameter. Statistics of a matrix's inputs matter where its format is calibrated."""
        packed = self._packed(self._owners.modules(name), tensor, inputs)
        if not isinstance(packed, nn.Parameter):
            packed = packed.moved(self._arena.copy_in(packed.data))
        self._owners.replace(name, packed)

    def _packed(
        self, modules: list[nn.Module], tensor: Tensor, inputs: InputStatistics | None
    ) -> PackedWeight | PackedExperts | nn.Parameter:
        if any(isinstance(module, Experts) for module in modules):
            return pack_experts(tensor, self._format.pack)
        if any(module in self._routers for module in modules):
            # Small, and a rounded router chooses other experts. float32 GEMMs have the same bits on every CPU.
            return pack_floats(tensor.float() if self._format.is_lossy else tensor)
        is_matrix = any(isinstance(module, Linear) for module in modules) and tensor.dim() > 1
        is_table = any(isinstance(module, Embedding) for module in modules)
        is_vocabulary = any(module in self._vocabulary for module in modules)
        # Rows of a plain table are read one at a time: packing would only scatter them. Position tables are small.
        if is_matrix or (is_table and self._format.is_lossy and is_vocabulary):
            return (self._format.of_vocabulary if is_vocabulary else self._format).pack(tensor, inputs)
        return nn.Parameter(tensor if is_table else tensor.float(), requires_grad=False)
