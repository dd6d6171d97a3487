"""Packs a model while it reads a text: each layer runs once in full, to measure the inputs of its matrices.

The text is token ids, all of one length, and attention is plain.
"""

from functools import partial

import torch
from torch import Tensor, nn

from archerfish.console import logger
from archerfish.models.attention import plain_attention
from archerfish.models.decoder import Decoder
from archerfish.models.layers import Linear
from archerfish.quant import InputStatistics, WeightFormat
from archerfish.weights.packing import Packer

_LAYERS = "layers."


class CalibratedPacker:
    """Takes each parameter once it is filled; no more than one layer is in memory in full.

    Parameters before the layers must come first, and the layers in their order.
    """

    def __init__(self, model: Decoder, weight_format: WeightFormat, texts: Tensor) -> None:
        """`texts` are token ids [texts, length]."""
        self._model = model
        self._pack = Packer(model, weight_format)
        self._put_in_full = Packer(model, WeightFormat(name="none"))
        self._waiting: dict[str, Tensor] = {}
        """Parameters of the layer that is being filled."""
        self._texts = texts
        self._positions = torch.arange(texts.shape[1]).repeat(len(texts))
        self._states: Tensor | None = None
        """[tokens, hidden] after the layers so far."""
        self._shared = {layer.attention.kv_source for layer in model.arch.layers}
        self._keys_values: dict[int, tuple[Tensor, Tensor]] = {}
        """By the layer that computed them, where another reads them."""
        self._num_left = {
            f"{_LAYERS}{index}.": len(list(layer.parameters())) for index, layer in enumerate(model.layers)
        }

    def __call__(self, name: str, tensor: Tensor) -> None:
        if not name.startswith(_LAYERS):
            self._pack(name, tensor)
            return
        self._waiting[name] = tensor
        layer = _LAYERS + name.split(".")[1] + "."
        self._num_left[layer] -= 1
        if self._num_left[layer] == 0:
            self._finish(layer)

    def _finish(self, layer: str) -> None:
        """Run the layer in float32, which is the same on every kind of kernel, then pack it."""
        for name, tensor in self._waiting.items():
            self._put_in_full(name, tensor.float())
        seen = self._run(layer)
        for name, tensor in self._waiting.items():
            self._pack(name, tensor, seen.get(name))
        self._waiting = {}

    @torch.inference_mode()
    def _run(self, prefix: str) -> dict[str, InputStatistics]:
        """Return statistics of the inputs of the layer's matrices, by the matrices' names."""
        if self._states is None:
            self._states = self._model.embedded(self._texts.flatten(), self._positions)
        layer = self._model.get_submodule(prefix[:-1])
        seen: dict[str, InputStatistics] = {}
        hooks = [
            module.register_forward_pre_hook(partial(_look, seen, f"{prefix}{name}.weight"))
            for name, module in layer.named_modules()
            if isinstance(module, Linear)
        ]
        self._states = layer(self._states, self._model.rotations(self._positions), self._attend)
        for hook in hooks:
            hook.remove()
        return seen

    def _attend(self, layer: int, q: Tensor, k: Tensor | None, v: Tensor | None) -> Tensor:
        spec = self._model.arch.layers[layer].attention
        if k is None or v is None:
            assert spec.kv_source is not None
            k, v = self._keys_values[spec.kv_source]
        elif layer in self._shared:
            self._keys_values[layer] = k, v
        queries, keys, values = (part.reshape(*self._texts.shape, *part.shape[1:]) for part in (q, k, v))
        by_text = zip(queries, keys, values, strict=True)
        return torch.cat([plain_attention(*text, spec) for text in by_text])


def _look(seen: dict[str, InputStatistics], name: str, _: nn.Module, arguments: tuple[Tensor]) -> None:
    [inputs] = arguments
    if inputs.isfinite().all():
        seen[name] = InputStatistics.of(inputs)
    else:
        logger.warning("%s is rounded to nearest: its inputs are not all numbers", name)
