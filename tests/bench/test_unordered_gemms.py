"""The baseline of invariance multiplies correctly, whatever the order in which it adds up."""

import pytest
import torch

from benchmarks.gpu.unordered_gemms import CANDIDATES, Plain, Split, fitting

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.mark.parametrize("candidate", CANDIDATES, ids=str)
def test_it_multiplies(candidate: Plain | Split) -> None:
    generator = torch.Generator().manual_seed(0)
    weight, x = (torch.randn(rows, 2048, generator=generator).to(DEVICE, torch.float16) for rows in (32, 1))
    assert candidate.fits(*weight.shape)
    for _ in range(2):  # Whatever the first leaves behind, the second finds.
        found = candidate.multiply(x, weight)
        torch.testing.assert_close(found.double(), x.double() @ weight.double().t(), rtol=2e-3, atol=2e-2)


def test_what_does_not_fill_its_tiles_is_no_candidate() -> None:
    assert {candidate for candidate in fitting(24, 1024) if isinstance(candidate, Split)} == set()
    assert Plain(8, 512, 2, 4) in fitting(24, 1024) and Plain(8, 512, 2, 4) not in fitting(24, 768)
