"""Puts weights into a model for Triton's kernels: matrices in their run-time format, the rest unchanged."""

from torch import Tensor, nn

from archerfish.models.decoder import Experts
from archerfish.models.layers import Linear
from archerfish.quant import WeightFormat
from archerfish.quant.device_weights import device_experts, device_weight
from archerfish.weights.packing import Network, ParameterOwners


class DevicePacker:
    """Takes each parameter once it is filled, on its device, so that no more than one of them is in memory in full."""

    def __init__(self, model: Network, weight_format: WeightFormat) -> None:
        assert weight_format.is_lossy
        self._vocabulary = model.vocabulary
        self._format = weight_format
        self._owners = ParameterOwners(model)
        self._routers = [module.router for module in model.modules() if isinstance(module, Experts)]

    def __call__(self, name: str, tensor: Tensor) -> None:
        modules = self._owners.modules(name)
        if any(isinstance(module, Experts) for module in modules):
            self._owners.replace(name, device_experts(tensor, self._format))
            return
        is_vocabulary = any(module in self._vocabulary for module in modules)
        is_matrix = tensor.dim() > 1 and (is_vocabulary or any(isinstance(module, Linear) for module in modules))
        # Position tables are small, and no kernel here looks up packed rows. A rounded router chooses other experts.
        if not is_matrix or any(module in self._routers for module in modules):
            self._owners.replace(name, nn.Parameter(tensor, requires_grad=False))
            return
        self._owners.replace(name, device_weight(tensor, self._format.of_vocabulary if is_vocabulary else self._format))
