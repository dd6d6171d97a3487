"""Which GEMMs are tuned, and that each is measured with its own shape."""

from dataclasses import replace
from pathlib import Path

import pytest

from archerfish.arch import ExpertsSpec, MlpSpec
from archerfish.bench.kernels.tuning import gemm_shapes_of, tune_gemms
from archerfish.disk_cache import DiskCache
from archerfish.ops.triton.gemm.float_tiles import candidate_tiles
from archerfish.ops.triton.runtime import tuning
from archerfish.ops.triton.runtime.tuning import GemmShape
from tests.execution.small_models import arch, layer


def test_each_matrix_is_tuned_once_for_each_number_of_rows() -> None:
    found = gemm_shapes_of(arch(layer(), layer()))
    rows = [8, 16, 32, 64, 128, 256, 512, 1024]
    assert [product.num_rows for product in found if product[1:] == (128, 32, False)] == [8, 16, 32, 64]
    assert [product.num_rows for product in found if product[1:] == (32, 64, False)] == rows
    assert {product[1:] for product in found} == {
        (128, 32, False), (32, 64, False), (96, 32, True), (32, 48, False), (61, 32, False)
    }  # fmt: skip


def test_experts_are_left_out() -> None:
    experts = ExpertsSpec(num_experts=5, num_experts_per_token=2, size=32)
    plain = replace(layer(), feed_forward=MlpSpec(size=48, gated=False))
    found = {product[1:] for product in gemm_shapes_of(arch(replace(layer(), feed_forward=experts), plain))}
    assert found == {(128, 32, False), (32, 64, False), (48, 32, False), (32, 48, False), (61, 32, False)}


def test_every_candidate_is_measured_and_progress_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = DiskCache("tiles", "1", tmp_path)
    monkeypatch.setattr(tuning, "_choices", lambda: cache)
    monkeypatch.setattr(tuning, "_device_name", lambda: "a GPU")
    products, progress, measured = [GemmShape(8, 6144, 4096), GemmShape(64, 6144, 4096)], [], []

    def seconds_of(product: GemmShape, tiles: object) -> float:
        measured.append((product, tiles))
        return 1.0 / len(measured)

    found = list(tune_gemms(products, seconds_of, progress.append))
    assert [(one.shape, one.best) for one in found] == [(one, candidate_tiles(*one[:3])[-1]) for one in products]
    assert measured == [(product, tiles) for product in products for tiles in candidate_tiles(*product[:3])]
    assert progress == [1, 2]
