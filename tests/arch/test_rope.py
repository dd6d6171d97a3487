"""Rotary frequencies of every kind equal the formulas of the papers and model cards, written plainly with arrays."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from archerfish.arch import RopeSpec

Array = np.ndarray[tuple[int], np.dtype[np.float64]]

dims = st.sampled_from([4, 8, 32, 64, 128])
thetas = st.sampled_from([10_000.0, 500_000.0, 1_000_000.0])
factors = st.floats(1.0, 40.0)


def plain(theta: float, dim: int) -> Array:
    return 1.0 / theta ** (np.arange(0, dim, 2) / dim)


def frequencies(spec: RopeSpec, max_model_len: int = 4096) -> Array:
    return np.array(spec.rotation(max_model_len).frequencies)


def assert_close(found: Array, expected: Array) -> None:
    np.testing.assert_allclose(found, expected, rtol=1e-12)


@given(theta=thetas, dim=dims)
def test_default_frequencies_fall_geometrically_from_one(theta: float, dim: int) -> None:
    spec = RopeSpec(theta=theta, dim=dim)
    assert_close(frequencies(spec), plain(theta, dim))
    assert spec.rotation(10).magnitude == 1.0
    assert frequencies(spec)[0] == 1.0


@given(theta=thetas, dim=dims, factor=factors)
def test_linear_scaling_squeezes_positions(theta: float, dim: int, factor: float) -> None:
    spec = RopeSpec(theta=theta, dim=dim, kind="linear", factor=factor)
    positions = np.arange(0, 1000, 37)
    rotated = np.outer(positions, frequencies(spec))
    np.testing.assert_allclose(rotated, np.outer(positions / factor, plain(theta, dim)), rtol=1e-12)


@given(theta=thetas, dim=dims, factor=factors, length=st.integers(2, 32768))
def test_dynamic_scaling_raises_the_base_with_the_length_served(
    theta: float, dim: int, factor: float, length: int
) -> None:
    spec = RopeSpec(theta=theta, dim=dim, kind="dynamic", factor=factor, original_max_positions=2048)
    served = max(length, 2048)
    base = theta * (factor * served / 2048 - (factor - 1)) ** (dim / (dim - 2))
    assert_close(frequencies(spec, length), plain(base, dim))


def test_dynamic_scaling_changes_nothing_within_the_original_context() -> None:
    spec = RopeSpec(theta=1e4, dim=64, kind="dynamic", factor=4.0, original_max_positions=2048)
    assert_close(frequencies(spec, 2048), plain(1e4, 64))
    assert (frequencies(spec, 4096)[1:] < plain(1e4, 64)[1:]).all()


@given(theta=thetas, dim=dims, factor=factors, low=st.floats(0.5, 2.0), width=st.floats(0.5, 8.0))
def test_llama3_scaling_blends_between_long_and_short_waves(
    theta: float, dim: int, factor: float, low: float, width: float
) -> None:
    original, high = 8192, low + width
    spec = RopeSpec(
        theta=theta,
        dim=dim,
        kind="llama3",
        factor=factor,
        original_max_positions=original,
        low_freq_factor=low,
        high_freq_factor=high,
    )
    frequency = plain(theta, dim)
    wavelength = 2 * np.pi / frequency
    smooth = (original / wavelength - low) / (high - low)
    blended = (1 - smooth) * frequency / factor + smooth * frequency
    expected = np.where(wavelength > original / low, frequency / factor, blended)
    expected = np.where(wavelength < original / high, frequency, expected)
    assert_close(frequencies(spec), expected)


def test_llama_3_1_leaves_its_fastest_pairs_and_slows_its_slowest_eightfold() -> None:
    spec = RopeSpec(theta=500_000.0, dim=128, kind="llama3", factor=8.0, original_max_positions=8192)
    ratio = frequencies(spec) / plain(500_000.0, 128)
    assert_close(ratio[:28], np.ones(28))
    assert_close(ratio[-29:], np.full(29, 1 / 8))
    assert (np.diff(ratio) <= 1e-12).all()


def yarn(theta: float, dim: int, factor: float, original: int, fast: float, slow: float, *, truncate: bool) -> Array:
    """NTK by parts: pairs that turn more than `fast` times stay, those under `slow` turns are interpolated."""

    def pair_that_turns(times: float) -> float:
        return dim / 2 * math.log(original / (2 * math.pi * times)) / math.log(theta)

    low, high = pair_that_turns(fast), pair_that_turns(slow)
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    high = high + 0.001 if low == high else high
    keep = 1 - np.clip((np.arange(dim // 2) - low) / (high - low), 0, 1)
    stretched: Array = plain(theta, dim) * keep + plain(theta, dim) / factor * (1 - keep)
    return stretched


@given(
    theta=thetas,
    dim=st.sampled_from([32, 64, 128]),
    factor=factors,
    original=st.sampled_from([2048, 4096, 32768, 1_048_576]),
    truncate=st.booleans(),
)
def test_yarn_interpolates_slow_pairs_only(
    theta: float, dim: int, factor: float, original: int, truncate: bool
) -> None:
    spec = RopeSpec(
        theta=theta, dim=dim, kind="yarn", factor=factor, original_max_positions=original, truncate=truncate
    )
    expected = yarn(theta, dim, factor, original, 32.0, 1.0, truncate=truncate)
    assert_close(frequencies(spec), expected)
    assert spec.rotation(8).magnitude == pytest.approx(0.1 * math.log(factor) + 1)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, 0.1 * math.log(40) + 1),
        ({"factor": 1.0}, 1.0),
        ({"factor": 0.5}, 1.0),
        ({"attention_factor": 0.75}, 0.75),
        ({"mscale": 1.0, "mscale_all_dim": 1.0}, 1.0),
        ({"mscale": 0.707, "mscale_all_dim": 1.0}, (0.0707 * math.log(40) + 1) / (0.1 * math.log(40) + 1)),
        ({"mscale": 0.707}, 0.1 * math.log(40) + 1),
    ],
)
def test_the_magnitude_of_yarn(fields: dict[str, Any], expected: float) -> None:
    given_fields = {"factor": 40.0, **fields}
    spec = RopeSpec(theta=1e4, dim=64, kind="yarn", original_max_positions=4096, **given_fields)
    assert spec.rotation(8).magnitude == pytest.approx(expected)


@pytest.mark.parametrize(("max_model_len", "is_long"), [(4096, False), (4097, True), (131072, True), (10, False)])
def test_longrope_divides_by_the_factors_of_the_length_served(max_model_len: int, is_long: bool) -> None:
    short, long = tuple(np.linspace(1.0, 1.5, 48)), tuple(np.linspace(1.0, 60.0, 48))
    spec = RopeSpec(
        theta=1e4,
        dim=96,
        kind="longrope",
        factor=32.0,
        original_max_positions=4096,
        short_factor=short,
        long_factor=long,
    )
    assert_close(frequencies(spec, max_model_len), plain(1e4, 96) / np.array(long if is_long else short))
    assert spec.rotation(max_model_len).magnitude == pytest.approx(math.sqrt(1 + math.log(32) / math.log(4096)))


@pytest.mark.parametrize(("fields", "expected"), [({"factor": 1.0}, 1.0), ({"attention_factor": 1.3}, 1.3)])
def test_the_magnitude_of_longrope(fields: dict[str, Any], expected: float) -> None:
    given_fields = {"factor": 8.0, **fields}
    spec = RopeSpec(
        theta=1e4,
        dim=4,
        kind="longrope",
        original_max_positions=4096,
        short_factor=(1.0, 1.0),
        long_factor=(2.0, 2.0),
        **given_fields,
    )
    assert spec.rotation(8192).magnitude == expected


def test_longrope_needs_a_factor_for_every_pair() -> None:
    spec = RopeSpec(
        theta=1e4, dim=8, kind="longrope", original_max_positions=16, short_factor=(1.0,) * 3, long_factor=(1.0,) * 4
    )
    with pytest.raises(ValueError, match=r"shorter|longer"):
        spec.rotation(8)


def test_only_some_dimensions_may_turn() -> None:
    assert len(RopeSpec(theta=1e4, dim=20).rotation(16).frequencies) == 10
