"""Kernels are compiled where there is a GPU, and run by Triton's interpreter elsewhere: the same tests for both."""

import pytest
import torch


@pytest.fixture
def device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"
