"""Puts weights into a model as a GPU's kernels want them: matrices in their run-time format, the rest as it is."""

from torch import Tensor, nn

from archerfish.models.decoder import Decoder, Experts
from archerfish.models.layers import Embedding, Linear
from archerfish.quant import WeightFormat
from archerfish.quant.device import device_experts, device_weight
from archerfish.weights.packing import Holders


class DevicePacker:
    """Takes each parameter once it is filled, on its device, so that no more than one of them is there in full."""

    def __init__(self, model: Decoder, weight_format: WeightFormat) -> None:
        assert weight_format.is_lossy
        self._model = model
        self._format = weight_format
        self._holders = Holders(model)
        self._routers = [module.router for module in model.modules() if isinstance(module, Experts)]

    def __call__(self, name: str, tensor: Tensor) -> None:
        modules = self._holders.modules(name)
        if any(isinstance(module, Experts) for module in modules):
            self._holders.put(name, device_experts(tensor, self._format))
            return
        is_matrix = tensor.dim() > 1 and any(isinstance(module, (Linear, Embedding)) for module in modules)
        # Positions are few, and looked up by rows that no kernel here unpacks. A rounded choice is another choice.
        is_kept = self._model.positions in modules or any(module in self._routers for module in modules)
        if not is_matrix or is_kept:
            self._holders.put(name, nn.Parameter(tensor, requires_grad=False))
            return
        is_vocabulary = self._model.embedding in modules or self._model.head in modules
        self._holders.put(name, device_weight(tensor, self._format.of_vocabulary if is_vocabulary else self._format))
