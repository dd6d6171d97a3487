"""Items and nesting are counted on the bytes alone, and agree with what a parser finds."""

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from archerfish.api import json_limits
from archerfish.api.json_limits import JsonLimits
from archerfish.errors import RequestError

_TEXTS = st.text(alphabet=st.sampled_from('ab"\\,[]{}:\n é🐟'), max_size=12)
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | _TEXTS,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(_TEXTS, inner, max_size=5),
    max_leaves=30,
)


def num_items(value: Any) -> int:
    """As the limits count: one for the whole, one for each container, and one for each further element in it."""
    return 1 + _inside(value)


def _inside(value: Any) -> int:
    if not isinstance(value, (list, dict)):
        return 0
    elements = list(value.values() if isinstance(value, dict) else value)
    return 1 + max(0, len(elements) - 1) + sum(map(_inside, elements))


def depth(value: Any) -> int:
    if not isinstance(value, (list, dict)):
        return 0
    return 1 + max(map(depth, value.values() if isinstance(value, dict) else value), default=0)


def passes(text: bytes, *, max_items: int = 10**9, max_depth: int = 10**9) -> bool:
    try:
        JsonLimits(max_items, max_depth).check(text)
    except RequestError:
        return False
    return True


@given(_VALUES, st.booleans(), st.sampled_from([7, 64, 1 << 16]))
@example('"\\', False, 7)
def test_what_is_counted_is_what_is_there(value: Any, is_ascii: bool, window: int) -> None:
    text = json.dumps(value, ensure_ascii=is_ascii).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_limits, "_WINDOW", window)
        assert passes(text, max_items=num_items(value)) and not passes(text, max_items=num_items(value) - 1)
        assert passes(text, max_depth=depth(value))
        assert depth(value) == 0 or not passes(text, max_depth=depth(value) - 1)


@given(st.binary(max_size=200))
def test_any_bytes_pass_or_are_refused(text: bytes) -> None:
    passes(text, max_items=3, max_depth=2)


def test_the_limits_are_named() -> None:
    with pytest.raises(RequestError, match="more than 2 JSON items; send less, or start with --max-body-items"):
        JsonLimits(2).check(b"[1, 2, 3]")
    with pytest.raises(RequestError, match="nests arrays and objects more than 64 levels deep"):
        JsonLimits(1000).check(b"[" * 65 + b"]" * 65)
