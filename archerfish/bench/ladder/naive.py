"""Generation as it is done before there is an engine: recomputing everything, or caching keys and values per request.

Uses the project's decoder and none of its cache, scheduler or sampler: what those add is measured against it.
"""

import torch
from torch import Tensor

from archerfish.arch.arch import AttentionSpec
from archerfish.arch.cost import kv_bytes_per_token
from archerfish.models.attention import plain_attention
from archerfish.models.decoder import Decoder
from archerfish.ops.signatures import AttendFunction

TokenIds = list[int]


@torch.inference_mode()
def generate_recomputing(model: Decoder, prompt: tuple[int, ...], num_tokens: int) -> TokenIds:
    """Generate greedily, with a pass over the whole sequence for each token."""
    tokens = list(prompt)
    for _ in range(num_tokens):
        tokens.append(_next_token(model, tokens, 0, WholeSequence(model)))
    return tokens[len(prompt) :]


@torch.inference_mode()
def generate_with_cache(model: Decoder, prompt: tuple[int, ...], num_tokens: int, cache: "ContiguousCache") -> TokenIds:
    """Generate greedily, with one pass over the prompt and one over each new token."""
    cache.length = 0
    new_tokens, output = list(prompt), []
    for _ in range(num_tokens):
        token = _next_token(model, new_tokens, cache.length, cache)
        cache.length += len(new_tokens)
        output.append(token)
        new_tokens = [token]
    return output


class WholeSequence:
    """Attention within one pass, which leaves nothing for the next."""

    def __init__(self, model: Decoder) -> None:
        self._layers = model.arch.layers
        self._stored: dict[int, tuple[Tensor, Tensor]] = {}

    def __call__(self, layer: int, q: Tensor, k: Tensor | None, v: Tensor | None) -> Tensor:
        spec = self._layers[layer].attention
        if k is not None and v is not None:
            self._stored[layer] = (k, v)
        return plain_attention(q, *self._stored[_kv_layer(layer, spec)], spec)


class ContiguousCache:
    """Keys and values of one request: one buffer per layer, large enough for the longest possible request."""

    def __init__(self, model: Decoder, max_length: int) -> None:
        table = model.embedding.weight
        self._layers = model.arch.layers
        self._stored: dict[int, tuple[Tensor, Tensor]] = {}
        for index, layer in enumerate(self._layers):
            spec = layer.attention
            if spec.kv_source is None:
                shape = (max_length, spec.num_kv_heads, spec.head_dim)
                self._stored[index] = (table.new_zeros(shape), table.new_zeros(shape))
        self.length = 0
        """Tokens whose keys and values are stored before a pass."""
        self.num_bytes = int(kv_bytes_per_token(model.arch, table.itemsize) * max_length)

    def __call__(self, layer: int, q: Tensor, k: Tensor | None, v: Tensor | None) -> Tensor:
        spec = self._layers[layer].attention
        keys, values = self._stored[_kv_layer(layer, spec)]
        end = self.length + len(q)
        if k is not None and v is not None:
            keys[self.length : end], values[self.length : end] = k, v
        return plain_attention(q, keys[:end], values[:end], spec)


def _kv_layer(layer: int, spec: AttentionSpec) -> int:
    """Return the layer whose keys and values this one reads."""
    return layer if spec.kv_source is None else spec.kv_source


def _next_token(model: Decoder, new_tokens: TokenIds, start: int, attend: AttendFunction) -> int:
    """Return the likeliest token after `new_tokens`, which have positions from `start` on."""
    device = model.embedding.weight.device
    tokens = torch.tensor(new_tokens, device=device)
    positions = torch.arange(start, start + len(new_tokens), device=device)
    hidden = model(tokens, positions, attend)
    return int(model.logits(hidden[-1:]).argmax())
