"""Torch's number formats by name."""

import torch


def torch_dtype(name: str) -> torch.dtype:
    """Return torch.float32 for "float32", and so on."""
    dtype = torch.float8_e4m3fn if name == "fp8" else getattr(torch, name)
    assert isinstance(dtype, torch.dtype)
    return dtype
