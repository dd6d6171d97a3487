"""EAGLE-3 against its formulas in plain torch: inputs side by side, one softmax over all earlier rows."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from archerfish.arch import AttentionSpec
from archerfish.models.attention import plain_attention
from archerfish.models.eagle import Eagle
from archerfish.models.layers import Embedding
from tests.models.heads import EAGLE, LAYER, OPS, eagle, filled

NUM_ROWS = 9


class Formulas:
    """Recomputes every row from the first one on: knows no cache, no groups of heads, no joined matrices."""

    def __init__(self, head: Eagle, table: Tensor) -> None:
        self.spec, self.table = head.spec, table
        found = {name: parameter.detach().double() for name, parameter in head.named_parameters()}
        attention = head.spec.layer.attention
        joined = torch.cat((found["layer.attention.qkv.weight"], found["layer.state_qkv.weight"]), dim=1)
        widths = [attention.q_width, attention.kv_width, attention.kv_width]
        self.q, self.k, self.v = joined.split(widths)
        bias = found.get("layer.attention.qkv.bias")
        self.biases = [0.0] * 3 if bias is None else list(bias.split(widths))
        self.found = found

    def norm(self, x: Tensor, name: str) -> Tensor:
        return x / (x.square().mean(-1, keepdim=True) + self.spec.norm.eps).sqrt() * self.found[f"{name}.weight"]

    def rotated(self, x: Tensor, position: int) -> Tensor:
        """Of a head's numbers, i turns with i + D / 2."""
        half = len(x) // 2
        angles = position * 10_000.0 ** (-torch.arange(half, dtype=torch.float64) / half)
        rotated_half = torch.view_as_complex(torch.stack((x[:half], x[half:]), -1)) * torch.polar(
            torch.ones(()).double(), angles
        )
        return torch.cat((rotated_half.real, rotated_half.imag))

    def states(self, tokens: list[int], positions: list[int], states: Tensor) -> Tensor:
        """What every row becomes, [T, hidden]."""
        attention = self.spec.layer.attention
        embedded = self.norm(self.table.double()[tokens], "layer.token_norm")
        normed = self.norm(states.double(), "layer.state_norm")
        both = torch.cat((embedded, normed), dim=1)
        q, k, v = (
            (both @ weight.T + bias).unflatten(1, (-1, attention.head_dim))
            for weight, bias in zip((self.q, self.k, self.v), self.biases, strict=True)
        )
        rows = []
        for row in range(len(tokens)):
            heads = []
            for number in range(attention.num_heads):
                group = number * attention.num_kv_heads // attention.num_heads
                query = self.rotated(q[row, number], positions[row])
                keys = torch.stack([self.rotated(k[one, group], positions[one]) for one in range(row + 1)])
                weights = torch.softmax(keys @ query / attention.head_dim**0.5, dim=0)
                heads.append(weights @ v[: row + 1, group])
            rows.append(torch.cat(heads))
        residual = normed if self.spec.norm_before_residual else states.double()
        output_bias = self.found.get("layer.attention.output.bias", 0.0)
        x = residual + torch.stack(rows) @ self.found["layer.attention.output.weight"].T + output_bias
        gate, up = (self.norm(x, "layer.mlp_norm") @ self.found["layer.mlp.up.weight"].T).chunk(2, dim=1)
        return x + (gate * torch.sigmoid(gate) * up) @ self.found["layer.mlp.down.weight"].T

    def logits(self, states: Tensor) -> Tensor:
        return self.norm(states, "norm") @ self.found["head.weight"].T


class Cache:
    """Keys and values of all rows so far."""

    def __init__(self, spec: AttentionSpec) -> None:
        self.spec = spec
        self.keys = torch.empty(0, spec.num_kv_heads, spec.head_dim)
        self.values = self.keys

    def attend(self, layer: int, q: Tensor, k: Tensor | None, v: Tensor | None) -> Tensor:
        assert layer == 0 and k is not None and v is not None
        self.keys, self.values = torch.cat((self.keys, k)), torch.cat((self.values, v))
        return plain_attention(q, self.keys, self.values, self.spec)


def some(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def close(found: Tensor, wanted: Tensor) -> None:
    assert found.dtype == torch.float32 and wanted.std() > 0.1
    torch.testing.assert_close(found.double(), wanted, rtol=1e-4, atol=1e-5)


WITH_BIASES = replace(LAYER, attention=replace(LAYER.attention, qkv_bias=True, output_bias=True))
KINDS: dict[str, dict[str, Any]] = {
    "as published": {},
    "normalized residual": {"norm_before_residual": True},
    "own table": {"has_embedding": True},
    "narrower than the target": {"has_embedding": True, "hidden_size": 16},
    "biases": {"layer": WITH_BIASES},
    "two depths, all tokens": {"target_layers": (1, 4), "vocab_size": 61},
}


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_it_computes_what_its_formulas_say(kind: str) -> None:
    table = filled(Embedding(61, 32, OPS), 1)
    head = eagle(table=None if KINDS[kind].get("has_embedding") else table, **KINDS[kind])
    rows = (head.embedding or table).weight.detach()
    plain = Formulas(head, rows)
    tokens = [(5 * place + 3) % 61 for place in range(NUM_ROWS)]
    taps = some(NUM_ROWS, len(head.spec.target_layers) * 32, seed=3)
    states = head.joined(taps)
    close(states, taps.double() @ plain.found["joining.weight"].T)
    cache = Cache(head.spec.layer.attention)
    given = head(torch.tensor(tokens), torch.arange(NUM_ROWS), states, cache.attend)
    close(given, plain.states(tokens, list(range(NUM_ROWS)), states))
    close(head.logits(given), plain.logits(given.double()))
    assert head.logits(given).shape == (NUM_ROWS, head.spec.vocab_size)


@torch.no_grad()
def test_it_goes_on_from_what_it_gave_itself() -> None:
    table = filled(Embedding(61, 32, OPS), 1)
    head, cache = eagle(table=table), Cache(EAGLE.layer.attention)
    plain = Formulas(head, table.weight.detach())
    tokens, states = [7, 60, 0, 12], head.joined(some(4, 96, seed=4))
    given = head(torch.tensor(tokens), torch.arange(4), states, cache.attend)[-1:]
    for token in (33, 2, 2):
        # The state of the row before stands in for the target's, and the position goes on.
        states = torch.cat((states, given))
        place, tokens = len(tokens), [*tokens, token]
        given = head(torch.tensor([token]), torch.tensor([place]), given, cache.attend)
        close(given, plain.states(tokens, list(range(place + 1)), states)[-1:])


def test_what_it_borrows_is_no_part_of_it() -> None:
    table = Embedding(61, 32, OPS)
    head = eagle(table=table)
    assert all(parameter is not table.weight for parameter in head.parameters())
    assert head.embedding is None and head.vocabulary == (head.head,)
    own = eagle(has_embedding=True)
    assert own.vocabulary == (own.embedding, own.head)
    assert "embedding.weight" in dict(own.named_parameters())


def test_tokens_have_the_targets_ids_unless_they_are_fewer() -> None:
    assert eagle(vocab_size=61).target_ids is None
    ids = eagle().target_ids
    assert ids is not None and ids.shape == (23,) and ids.dtype == torch.int64


def test_everything_of_it_can_be_trained() -> None:
    head = eagle(has_embedding=True, layer=WITH_BIASES)
    states = head.joined(some(NUM_ROWS, 96, seed=6))
    given = head(torch.arange(NUM_ROWS), torch.arange(NUM_ROWS), states, Cache(EAGLE.layer.attention).attend)
    head.logits(given).logsumexp(dim=1).sum().backward()
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in head.parameters())
