"""What is tuned is measured on a GPU: without one, that is said."""

import pytest
import torch

from archerfish.disk_cache import DiskCache
from archerfish.ops.triton.runtime import tuning
from tests.cli.running import RANDOM_LLAMA, archerfish, assert_refused


def test_help_lists_what_can_be_tuned() -> None:
    result = archerfish("tune")
    assert result.exit_code == 0 and "kernels" in result.stdout


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_there_is_nothing_to_tune() -> None:
    assert_refused(archerfish("tune", "kernels", "--model", str(RANDOM_LLAMA)), "tuning needs a GPU and Triton")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_small_model_is_tuned(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(tuning, "_choices", lambda: DiskCache("tiles", tuning.kernel_version(), tmp_path))
    result = archerfish("tune", "kernels", "--model", str(RANDOM_LLAMA), "--dtype", "bfloat16")
    assert result.exit_code == 0 and "faster" in result.stdout
    assert (tmp_path / "tiles.json").exists()
