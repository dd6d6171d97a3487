"""Numbers and other values that no field means anything with: an error that names the field, or a sound shape."""

import json
import math
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import pytest

from archerfish.arch.arch import Arch
from archerfish.errors import ModelError, UnsupportedModel
from archerfish.models.families import Fields, find_family
from tests.checkpoints import CONFIG
from tests.models.test_published_configs import PUBLISHED

HOSTILE = [
    *(math.inf, -math.inf, math.nan, 1e400, 1e308, 1e16, 1e-320, 10**400, 2**63, 2**31, -1, -1.5, 0, 0.0),
    *("12", "", [], [[]], [{}], [math.nan], {}, {"rope_type": []}, True, {"rope_theta": math.inf}),
]


def read(config: dict[str, Any]) -> Arch:
    return find_family(config).read(Fields(config))


def numbers(value: object) -> Iterator[float]:
    """All that a shape consists of."""
    if is_dataclass(value):
        for one in fields(value):
            yield from numbers(getattr(value, one.name))
    elif isinstance(value, tuple):
        for item in value:
            yield from numbers(item)
    elif isinstance(value, (int, float)):
        yield value


@pytest.mark.parametrize("name", PUBLISHED)
def test_whatever_a_field_holds_is_refused_or_gives_a_sound_shape(name: str) -> None:
    config = dict(PUBLISHED[name].config)
    if "num_hidden_layers" in config:  # Few, because each is read again and again.
        config["num_hidden_layers"] = 2
    config = {key: value for key, value in config.items() if key not in ("layer_types", "no_rope_layers")}
    read(config)
    nested = [key for key, value in config.items() if isinstance(value, dict)]
    changed = [{**config, key: value} for key in config for value in HOSTILE]
    changed += [
        {**config, outer: {**config[outer], key: value}}
        for outer in nested
        for key in config[outer]
        for value in HOSTILE
    ]
    for one in changed:
        try:
            arch = read(one)
        except ModelError as error:
            assert len(str(error)) < 5_000
        else:
            assert all(map(math.isfinite, numbers(arch)))
            for spec in {layer.attention.rope for layer in arch.layers} - {None}:
                rotation = spec.rotation(arch.max_positions)
                assert all(map(math.isfinite, (*rotation.frequencies, rotation.magnitude)))
                assert 2 * len(rotation.frequencies) <= arch.layers[0].attention.head_dim


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ('"rope_theta": 1e400', "rope_theta = inf"),
        ('"rope_theta": NaN', "rope_theta = nan"),
        ('"rope_theta": 0', "rope_theta = 0"),
        ('"rms_norm_eps": Infinity', "rms_norm_eps = inf"),
        ('"rms_norm_eps": -1e-6', "rms_norm_eps = -1e-06"),
        ('"vocab_size": 99999999999', "vocab_size = 99999999999"),
        ('"rope_scaling": {"rope_type": "linear", "factor": 1e999}', "factor = inf"),
        ('"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "beta_fast": 0}', "beta_fast = 0"),
        ('"rope_theta": 1, "rope_scaling": {"rope_type": "yarn", "factor": 4.0}', "rope type yarn"),
        ('"partial_rotary_factor": 1.5', "partial_rotary_factor = 1.5"),
    ],
)
def test_numbers_that_mean_nothing_are_named(changes: str, named: str) -> None:
    """As a file has them: json reads infinity and not-a-number."""
    with pytest.raises(UnsupportedModel, match=named):
        read({**CONFIG, **json.loads("{" + changes + "}")})
