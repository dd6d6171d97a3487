"""A shape that contradicts itself is not accepted."""

import pytest

from archerfish.arch import LayerSpec, MlpSpec, RopeSpec
from tests.arch.shapes import arch, attention


def layer(**more: object) -> LayerSpec:
    return LayerSpec(attention=attention(4, 2, 8, **more), feed_forward=MlpSpec(size=16))


def test_widths_follow_from_heads() -> None:
    spec = attention(6, 2, 8)
    assert (spec.q_width, spec.kv_width, spec.qkv_width) == (48, 16, 80)
    assert attention(6, 2, 8, kv_source=0).qkv_width == 48


def test_heads_must_share_kv_heads_evenly() -> None:
    with pytest.raises(AssertionError):
        arch(10, 32, [LayerSpec(attention=attention(4, 3, 8), feed_forward=MlpSpec(size=16))])


@pytest.mark.parametrize("sources", [(0,), (None, 1), (1, None), (None, 0, 1)])
def test_keys_come_from_an_earlier_layer_that_makes_its_own(sources: tuple[int | None, ...]) -> None:
    with pytest.raises(AssertionError):
        arch(10, 32, [layer(kv_source=source) for source in sources])


def test_positions_can_be_extended_only_where_every_rotation_says_how() -> None:
    def can_extend(*kinds: str, learned: bool = False) -> bool:
        ropes = [RopeSpec(theta=1e4, dim=8, kind=kind) for kind in kinds]  # type: ignore[arg-type]
        return arch(10, 32, [layer(rope=rope) for rope in ropes], learned_positions=learned).can_extend_positions

    assert can_extend("yarn", "linear", "dynamic")
    assert not can_extend("yarn", "default")
    assert not can_extend("llama3")
    assert not can_extend("longrope")
    assert not can_extend("linear", learned=True)
