"""The description of a model directory without loading it."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from archerfish.weights.describe import describe
from tests.checkpoints import CONFIG


@pytest.mark.parametrize(
    ("few", "many", "name"),
    [
        (torch.float32, torch.bfloat16, "bfloat16"),
        (torch.bfloat16, torch.float32, "float32"),
        (torch.float32, torch.float8_e4m3fn, "F8_E4M3"),
    ],
)
def test_the_dtype_is_that_of_most_numbers(tmp_path: Path, few: torch.dtype, many: torch.dtype, name: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    tensors = {f"few.{i}": torch.zeros(2, dtype=few) for i in range(3)} | {"many": torch.zeros(4, 5).to(many)}
    save_file(tensors, tmp_path / "model.safetensors")
    found = describe(tmp_path)
    assert (found.dtype, found.num_parameters) == (name, 26)


def test_the_first_problem_is_reported(tmp_path: Path) -> None:
    found = describe(tmp_path)
    assert found.problem is not None and "has no config.json" in found.problem
    assert (found.family, found.num_parameters, found.dtype, found.context_length) == (None, None, None, None)
