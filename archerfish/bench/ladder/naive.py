"""The ways to write an answer that come before an engine: recompute everything, or keep keys and values of one request.

They use the project's own decoder, and none of its cache, scheduler or sampler: what those add is measured against it.
"""

import torch
from torch import Tensor

from archerfish.arch.arch import AttentionSpec
from archerfish.arch.cost import kv_bytes_per_token
from archerfish.models.attention import plain_attention
from archerfish.models.decoder import Decoder
from archerfish.ops.signatures import AttendFunction

Answer = list[int]


@torch.inference_mode()
def write_recomputing(model: Decoder, prompt: tuple[int, ...], num_tokens: int) -> Answer:
    """The likeliest tokens, each from a pass over everything before it."""
    tokens = list(prompt)
    for _ in range(num_tokens):
        tokens.append(_likeliest(model, tokens, 0, WholeSequence(model)))
    return tokens[len(prompt) :]


@torch.inference_mode()
def write_with_cache(model: Decoder, prompt: tuple[int, ...], num_tokens: int, cache: "ContiguousCache") -> Answer:
    """The same from one pass over the prompt, and then over one token at a time."""
    cache.length = 0
    fresh, answer = list(prompt), []
    for _ in range(num_tokens):
        token = _likeliest(model, fresh, cache.length, cache)
        cache.length += len(fresh)
        answer.append(token)
        fresh = [token]
    return answer


class WholeSequence:
    """Attention within one pass. Nothing is kept for the next."""

    def __init__(self, model: Decoder) -> None:
        self._layers = model.arch.layers
        self._made: dict[int, tuple[Tensor, Tensor]] = {}

    def __call__(self, layer: int, q: Tensor, k: Tensor | None, v: Tensor | None) -> Tensor:
        spec = self._layers[layer].attention
        if k is not None and v is not None:
            self._made[layer] = (k, v)
        return plain_attention(q, *self._made[_source(layer, spec)], spec)


class ContiguousCache:
    """Keys and values of one request, one stretch of memory a layer, as long as the longest request could be."""

    def __init__(self, model: Decoder, max_length: int) -> None:
        table = model.embedding.weight
        self._layers = model.arch.layers
        self._kept: dict[int, tuple[Tensor, Tensor]] = {}
        for index, layer in enumerate(self._layers):
            spec = layer.attention
            if spec.kv_source is None:
                shape = (max_length, spec.num_kv_heads, spec.head_dim)
                self._kept[index] = (table.new_zeros(shape), table.new_zeros(shape))
        self.length = 0
        """Tokens whose keys and values are there before a pass."""
        self.num_bytes = int(kv_bytes_per_token(model.arch, table.itemsize) * max_length)

    def __call__(self, layer: int, q: Tensor, k: Tensor | None, v: Tensor | None) -> Tensor:
        spec = self._layers[layer].attention
        keys, values = self._kept[_source(layer, spec)]
        end = self.length + len(q)
        if k is not None and v is not None:
            keys[self.length : end], values[self.length : end] = k, v
        return plain_attention(q, keys[:end], values[:end], spec)


def _source(layer: int, spec: AttentionSpec) -> int:
    return layer if spec.kv_source is None else spec.kv_source


def _likeliest(model: Decoder, fresh: list[int], first: int, attend: AttendFunction) -> int:
    """The token that follows `fresh`, which stand at positions from `first` on."""
    device = model.embedding.weight.device
    tokens = torch.tensor(fresh, device=device)
    positions = torch.arange(first, first + len(fresh), device=device)
    hidden = model(tokens, positions, attend)
    return int(model.logits(hidden[-1:]).argmax())
