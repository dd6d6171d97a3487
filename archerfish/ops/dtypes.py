"""Number formats by name: settings, plans and targets name them; only tensors need torch's own."""

import torch


def torch_dtype(name: str) -> torch.dtype:
    """torch.float32 for "float32"."""
    dtype = torch.float8_e4m3fn if name == "fp8" else getattr(torch, name)
    assert isinstance(dtype, torch.dtype)
    return dtype
