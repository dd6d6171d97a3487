"""What is launched within `compile_only` is compiled, as it will be needed, and not run."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch

from archerfish.ops.triton.elementwise import row_ops as rows
from archerfish.ops.triton.runtime import kernel_launch


def test_nothing_is_run_within_compile_only(device: str) -> None:
    x, y = torch.ones(3, 64, device=device), torch.ones(3, 64, device=device)
    out = torch.zeros(3, 64, device=device)
    with kernel_launch.compile_only(1):
        assert kernel_launch.is_compile_only()
        rows.add_into(out, x, y, 1.0)
    assert not kernel_launch.is_compile_only()
    assert not out.any()
    rows.add_into(out, x, y, 1.0)
    assert (out == 2).all()


def test_compile_only_ends_with_an_exception() -> None:
    with pytest.raises(ZeroDivisionError), kernel_launch.compile_only(1):
        raise ZeroDivisionError
    assert not kernel_launch.is_compile_only()


def test_kernels_are_compiled_once_and_none_is_left_to_compile(tmp_path: Path) -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    child = [sys.executable, str(Path(__file__).with_name("compile_only_child.py"))]
    ran = subprocess.run(child, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    assert (found["at_start"], found["after"]) == (["_empty_kernel"], [])
    assert found["refused"], "what does not fit says so when it is launched, and affects no other kernel"
    # Tiles of 8 and of 16 rows; rows at aligned addresses and at another; small and large tiles of query tokens.
    assert Counter(found["ahead"]) == {
        "_float_gemm_kernel": 2, "add_kernel": 2, "_gather_rows_kernel": 1, "attend_kernel": 2
    }  # fmt: skip
