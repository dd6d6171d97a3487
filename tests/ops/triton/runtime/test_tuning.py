"""Measured tiles are stored and used, and a stored choice is always one of the candidates."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from archerfish.disk_cache import DiskCache
from archerfish.ops.triton.gemm.float_gemm import FloatEpilogue, float_gemm_into
from archerfish.ops.triton.gemm.float_tiles import (
    FloatTiles,
    candidate_tiles,
    chosen_tiles,
    default_tiles,
    num_k_splits,
)
from archerfish.ops.triton.runtime import tuning
from archerfish.ops.triton.runtime.kernel_launch import INTERPRETED
from archerfish.ops.triton.runtime.tuning import GemmShape, stored_tiles, tune_gemm

pytestmark = pytest.mark.each_choice

SHAPE = (16, 6144, 4096)
PRODUCT = GemmShape(*SHAPE)


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A GPU of this name, and nothing known of it yet."""
    monkeypatch.setattr(tuning, "INTERPRETED", False)
    monkeypatch.setattr(tuning, "_device_name", lambda: "a GPU")
    _start_again(tmp_path, monkeypatch)
    yield tmp_path
    chosen_tiles.cache_clear()


def _start_again(directory: Path, monkeypatch: pytest.MonkeyPatch, device: str = "a GPU") -> None:
    """As a new process would."""
    cache = DiskCache("tiles", tuning.kernel_version(), directory)
    monkeypatch.setattr(tuning, "_choices", lambda: cache)
    monkeypatch.setattr(tuning, "_device_name", lambda: device)
    chosen_tiles.cache_clear()


def tuned_to(place: int) -> FloatTiles:
    """The candidate at a place is measured to be the fastest."""
    candidates = candidate_tiles(*SHAPE)
    seconds = dict.fromkeys(candidates, 2.0) | {candidates[place]: 1.0}
    found = tune_gemm(PRODUCT, candidates, seconds.__getitem__)
    assert (found.best, found.seconds) == (candidates[place], 1.0)
    return candidates[place]


def test_the_fastest_is_used_from_the_next_process_on(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert chosen_tiles(*SHAPE, False) == default_tiles(*SHAPE)
    best = tuned_to(5)
    _start_again(directory, monkeypatch)
    assert chosen_tiles(*SHAPE, False) == best != default_tiles(*SHAPE)
    assert chosen_tiles(9, *SHAPE[1:], False) == best, "rows that are cut alike"


def test_what_was_measured_elsewhere_is_not_used(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tuned_to(5)
    _start_again(directory, monkeypatch, device="another GPU")
    assert chosen_tiles(*SHAPE, False) == default_tiles(*SHAPE)
    _start_again(directory, monkeypatch)
    others = [((17, 6144, 4096), False), ((16, 6145, 4096), False), ((16, 6144, 4080), False), (SHAPE, True)]
    for shape, is_gated in others:
        assert chosen_tiles(*shape, is_gated) == default_tiles(*shape)


@pytest.mark.usefixtures("directory")
def test_what_is_hardly_slower_is_left_as_it_is() -> None:
    candidates = candidate_tiles(*SHAPE)
    assert tune_gemm(PRODUCT, candidates, lambda _: 1.0).best == candidates[0]
    hardly = dict.fromkeys(candidates, 0.95) | {candidates[0]: 1.0}
    assert tune_gemm(PRODUCT, candidates, hardly.__getitem__).best == candidates[0]


@pytest.mark.parametrize("changed", [{"inputs": 8}, {"rows": 24}, {"num_warps": 3}])
def test_a_stored_choice_that_is_no_candidate_is_not_used(
    changed: dict[str, int], directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    best = tuned_to(5)
    path = directory / "tiles.json"
    written = json.loads(path.read_text())
    assert list(written["entries"].values()) == [list(best)]
    written["entries"] = {key: list(best._replace(**changed)) for key in written["entries"]}
    path.write_text(json.dumps(written))
    _start_again(directory, monkeypatch)
    assert stored_tiles(PRODUCT, candidate_tiles(*SHAPE)) is None
    assert chosen_tiles(*SHAPE, False) == default_tiles(*SHAPE)


@pytest.mark.parametrize("shape", [(1, 96, 256), (20, 96, 256), (5, 4096, 128)])
@pytest.mark.parametrize("gated", [False, True])
def test_no_candidate_changes_a_bit(shape: tuple[int, int, int], gated: bool, device: str) -> None:
    """The interpreter's products depend on the shapes of tiles; a tensor core's do not."""
    num_rows, num_outputs, num_inputs = shape
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(num_rows, num_inputs, generator=generator).to(device, torch.float16)
    weight = (torch.randn(num_outputs, num_inputs, generator=generator) / num_inputs**0.5).to(device, torch.float16)
    made = []
    candidates = candidate_tiles(*shape)
    for tiles in candidates[:: 7 if INTERPRETED else 1]:
        out = torch.empty(num_rows, num_outputs // (2 if gated else 1), dtype=torch.float16, device=device)
        float_gemm_into(out, x, weight, None, FloatEpilogue(activation="silu" if gated else None), tiles)
        made.append(out)
    assert len(made) > 1
    for other in made[1:]:
        torch.testing.assert_close(other, made[0], rtol=0, atol=2.0**-9 if INTERPRETED else 0.0)


@pytest.mark.parametrize("num_rows", [1, 8, 16, 32, 64, 200, 1000])
@pytest.mark.parametrize(("num_outputs", "num_inputs"), [(1024, 3072), (6144, 4096), (128256, 4096), (4096, 64)])
def test_candidates_fit_a_multiprocessor(num_rows: int, num_outputs: int, num_inputs: int) -> None:
    candidates = candidate_tiles(num_rows, num_outputs, num_inputs)
    assert candidates[0] == default_tiles(num_rows, num_outputs, num_inputs)
    assert len(set(candidates)) == len(candidates)
    parts = num_k_splits(num_outputs, num_inputs)
    for tiles in candidates[1:]:
        assert tiles.rows == candidates[0].rows and tiles.split_k_mode == candidates[0].split_k_mode
        at_once = parts if tiles.split_k_mode == "warps" else 1
        assert 2 * (tiles.outputs + tiles.rows) * tiles.inputs * (tiles.num_stages + 1) * at_once <= 227 << 10
        assert tiles.inputs * parts <= num_inputs
