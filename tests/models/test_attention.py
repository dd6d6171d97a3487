"""Plain attention against the definition, query by query."""

import pytest
import torch

from archerfish.models.attention import plain_attention
from tests.arch.shapes import attention


@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("window", [None, 3])
def test_plain_attention_is_the_textbooks(window: int | None, softcap: float | None) -> None:
    spec = attention(4, 2, 8, window=window, softcap=softcap)
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(9, heads, 8, generator=generator) for heads in (4, 2, 2))
    out = plain_attention(q, k, v, spec)
    for token in range(9):
        first = 0 if window is None else max(0, token - window + 1)
        for head in range(4):
            scores = k[first : token + 1, head // 2] @ q[token, head] * spec.scale
            scores = scores if softcap is None else torch.tanh(scores / softcap) * softcap
            wanted = torch.softmax(scores, 0) @ v[first : token + 1, head // 2]
            torch.testing.assert_close(out[token, head], wanted)
    for count in (1, 4):  # The last tokens alone see what they saw before.
        torch.testing.assert_close(plain_attention(q[-count:], k, v, spec), out[-count:])
