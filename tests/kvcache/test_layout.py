"""Layers with one reach share blocks, every place is used once, and all blocks weigh the same."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from archerfish.arch import Arch, AttentionSpec, LayerSpec, MlpSpec, NormSpec
from archerfish.kvcache.layout import KVLayout, LayerSlot, kv_layout


def arch(
    windows: Sequence[int | None], sources: dict[int, int] | None = None, num_kv_heads: int = 2, head_dim: int = 8
) -> Arch:
    layers = tuple(
        LayerSpec(
            attention=AttentionSpec(
                num_heads=4,
                num_kv_heads=num_kv_heads,
                head_dim=head_dim,
                scale=1.0,
                window=window,
                kv_source=(sources or {}).get(index),
            ),
            feed_forward=MlpSpec(size=16),
        )
        for index, window in enumerate(windows)
    )
    return Arch(family="made up", vocab_size=10, hidden_size=32, layers=layers, norm=NormSpec(), max_positions=64)


def test_a_uniform_model_is_one_group_with_a_slot_for_each_layer() -> None:
    layout = kv_layout(arch([None] * 5))
    assert layout.windows == (None,)
    assert layout.num_slots == 5
    assert layout.layer_slots == tuple(LayerSlot(0, slot) for slot in range(5))


def test_a_model_of_windows_only_is_one_group_with_that_window() -> None:
    layout = kv_layout(arch([128] * 3))
    assert (layout.windows, layout.num_slots) == ((128,), 3)


def test_alternating_windows_are_two_groups() -> None:
    layout = kv_layout(arch([64, None, 64, None]))
    assert layout.windows == (64, None)
    assert layout.num_slots == 2
    assert layout.layer_slots == (LayerSlot(0, 0), LayerSlot(1, 0), LayerSlot(0, 1), LayerSlot(1, 1))


def test_five_windows_to_one_full_layer_are_six_groups() -> None:
    windows = [512 if (index + 1) % 6 else None for index in range(12)]
    layout = kv_layout(arch(windows))
    assert layout.num_slots == 2
    assert sorted(layout.windows, key=str) == [512] * 5 + [None]
    check(layout, arch(windows))


def test_layers_that_do_not_fill_their_last_group_still_have_places() -> None:
    # 26 layers as in a small Gemma 3: 4 full ones, 22 with a window, so the last of 6 window groups is half empty.
    windows = [512 if (index + 1) % 6 else None for index in range(26)]
    layout = kv_layout(arch(windows))
    assert layout.num_slots == 4
    assert sorted(layout.windows, key=str) == [512] * 6 + [None]
    check(layout, arch(windows))


def test_layers_that_share_keys_and_values_share_the_place_and_cost_nothing() -> None:
    layout = kv_layout(arch([None] * 4, sources={2: 0, 3: 1}))
    assert layout.num_slots == 2
    assert layout.layer_slots == (LayerSlot(0, 0), LayerSlot(0, 1), LayerSlot(0, 0), LayerSlot(0, 1))


def test_a_layer_that_sees_farther_than_its_source_widens_the_window_of_the_source() -> None:
    """Or the model is refused; what must not happen is that blocks it reads are given away."""
    try:
        layout = kv_layout(arch([8, None], sources={1: 0}))
    except Exception:
        return
    assert layout.windows[layout.layer_slots[1].group] is None


def test_keys_are_stored_for_the_farthest_of_their_readers() -> None:
    layout = kv_layout(arch([8, 16, 4], sources={1: 0, 2: 0}))
    assert layout.windows == (16,)
    assert layout.layer_slots == (LayerSlot(0, 0),) * 3


def test_a_block_weighs_keys_and_values_of_its_slots() -> None:
    layout = kv_layout(arch([None] * 3, num_kv_heads=4, head_dim=16))
    assert layout.block_bytes(16, 2) == 2 * 3 * 16 * 4 * 16 * 2


def test_layers_of_different_shapes_are_not_mixed() -> None:
    base = arch([None, None])
    wide = arch([None], num_kv_heads=4)
    mixed = Arch(
        family="made up",
        vocab_size=10,
        hidden_size=32,
        layers=(*base.layers, *wide.layers),
        norm=NormSpec(),
        max_positions=64,
    )
    with pytest.raises(AssertionError):
        kv_layout(mixed)


@given(windows=st.lists(st.sampled_from([None, 4, 8]), min_size=1, max_size=20), data=st.data())
def test_every_layer_has_its_own_place_in_a_group_of_its_reach(windows: list[int | None], data: st.DataObject) -> None:
    sources: dict[int, int] = {}
    for index, window in enumerate(windows):
        earlier = [e for e in range(index) if e not in sources and windows[e] == window]
        source = data.draw(st.sampled_from([None, *earlier]))
        if source is not None:
            sources[index] = source
    model = arch(windows, sources)
    check(kv_layout(model), model)


def check(layout: KVLayout, model: Arch) -> None:
    owners = [index for index, layer in enumerate(model.layers) if layer.attention.kv_source is None]
    places = [layout.layer_slots[index] for index in owners]
    assert len(set(places)) == len(places), "two layers write to one place"
    assert {place.group for place in places} == set(range(len(layout.windows))), "a group without layers"
    for index, layer in enumerate(model.layers):
        place, source = layout.layer_slots[index], layer.attention.kv_source
        assert 0 <= place.slot < layout.num_slots
        assert layout.windows[place.group] == layer.attention.window
        assert source is None or place == layout.layer_slots[source]
    # At most one group of each window is not full.
    for window in set(layout.windows):
        groups = [group for group, reach in enumerate(layout.windows) if reach == window]
        assert len(groups) == -(-sum(layout.windows[p.group] == window for p in places) // layout.num_slots)
