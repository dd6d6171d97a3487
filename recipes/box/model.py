"""The project's own decoder outside the engine, for training: a plain causal attention over rows of equal length."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from archerfish.arch.arch import Arch
from archerfish.models.decoder import Decoder
from archerfish.models.families import Fields, find_family
from archerfish.ops import KernelTarget, choose_ops
from recipes.box.shapes import CONTEXT, SHAPES


def new_model(name: str, device: str, seed: int = 0) -> Decoder:
    """Return new float32 weights: small normal numbers, smaller where they add to the residual stream."""
    config = SHAPES[name]
    arch = find_family(config).read(Fields(config))
    ops = choose_ops(KernelTarget(device=device, dtype="float32")).ops
    with torch.device(device):
        model = Decoder(arch, ops, CONTEXT)
    model.to(device)
    generator = torch.Generator(device=device).manual_seed(seed)
    out_scale = (2 * len(arch.layers)) ** -0.5
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if parameter.dim() < 2:
                parameter.fill_(1.0)
                continue
            spread = 0.02 if "embedding" in parameter_name else parameter.shape[1] ** -0.5
            if parameter_name.endswith(("output.weight", "down.weight")):
                spread *= out_scale
            parameter.normal_(0.0, spread, generator=generator)
    return model


class RowAttention:
    """Causal attention within each of num_rows rows of equal length, laid one after the other."""

    def __init__(self, arch: Arch, num_rows: int) -> None:
        self._arch = arch
        self._num_rows = num_rows

    def __call__(self, layer: int, q: Tensor, k: Tensor | None, v: Tensor | None) -> Tensor:
        assert k is not None and v is not None
        scale = self._arch.layers[layer].attention.scale
        q, k, v = (x.view(self._num_rows, -1, *x.shape[1:]).transpose(1, 2) for x in (q, k, v))  # [rows, heads, T, D]
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=True)
        return out.transpose(1, 2).flatten(0, 1)


class RowCache:
    """Causal attention for rows that grow by one token per call, with their keys and values stored."""

    def __init__(self, arch: Arch, num_rows: int, length: int, device: str, dtype: torch.dtype) -> None:
        spec = arch.layers[0].attention
        shape = (len(arch.layers), 2, num_rows, spec.num_kv_heads, length, spec.head_dim)
        self._kv = torch.zeros(shape, device=device, dtype=dtype)
        self._scale = spec.scale
        self.length = 0

    def __call__(self, layer: int, q: Tensor, k: Tensor | None, v: Tensor | None) -> Tensor:
        assert k is not None and v is not None
        keys, values = self._kv[layer, 0], self._kv[layer, 1]
        keys[:, :, self.length], values[:, :, self.length] = k, v
        seen = self.length + 1
        out = F.scaled_dot_product_attention(
            q.unsqueeze(2), keys[:, :, :seen], values[:, :, :seen], scale=self._scale, enable_gqa=True
        )
        return out.squeeze(2)


def logits_of_rows(model: Decoder, rows: Tensor) -> Tensor:
    """Compute [rows, T] -> [rows, T, vocabulary], float32."""
    num_rows, length = rows.shape
    positions = torch.arange(length, device=rows.device).repeat(num_rows)
    hidden = model(rows.flatten(), positions, RowAttention(model.arch, num_rows))
    return model.logits(hidden).view(num_rows, length, -1)


@contextmanager
def half_precision(device: str) -> Iterator[None]:
    """Run GEMMs in bfloat16 if the hardware supports it; in float32 on a CPU."""
    with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
        yield


@torch.no_grad()
def sample(model: Decoder, prompts: Tensor, length: int, temperature: float, device: str, seed: int) -> Tensor:
    """Continue prompts [rows, P] by sampling to [rows, length]; a temperature of 0 takes the likeliest."""
    generator = torch.Generator(device=device).manual_seed(seed)
    num_rows, num_given = prompts.shape
    rows = torch.zeros(num_rows, length, dtype=torch.int64, device=device)
    rows[:, :num_given] = prompts
    cache = RowCache(model.arch, num_rows, length, device, torch.bfloat16 if device == "cuda" else torch.float32)
    with half_precision(device):
        for place in range(length - 1):
            cache.length = place
            positions = torch.full((num_rows,), place, device=device)
            hidden = model(rows[:, place], positions, cache)
            if place + 1 < num_given:
                continue
            logits = model.logits(hidden)
            if temperature == 0:
                rows[:, place + 1] = logits.argmax(-1)
            else:
                chances = torch.softmax(logits / temperature, dim=-1)
                rows[:, place + 1] = torch.multinomial(chances, 1, generator=generator)[:, 0]
    return rows


def load_parameters(model: nn.Module, path: Path) -> None:
    model.load_state_dict(load_file(path, device="cpu"), strict=False)


def save_parameters(model: nn.Module, path: Path) -> None:
    """Save float32 parameters, each once: the head is the embedding table."""
    named: dict[str, Any] = {
        name: parameter.detach().cpu().contiguous() for name, parameter in model.named_parameters()
    }
    save_file(named, path)
