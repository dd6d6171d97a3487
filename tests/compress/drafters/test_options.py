"""Options that cannot work are refused by name."""

from pathlib import Path

import pytest

from archerfish.errors import ConfigError
from tests.compress.drafters.walkers import options


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"method": "eagle", "layers": 2}, "--layers is for --method medusa or draft_model, not eagle"),
        ({"method": "medusa", "hidden_size": 64}, "--hidden-size is for --method draft_model, not medusa"),
        ({"vocabulary": 100}, "--vocabulary is for --method medusa or eagle, not draft_model"),
        ({"start": "minnow", "layers": 2}, "--start has a shape of its own"),
        ({"steps": 5, "minutes": 1.0}, "--steps and --minutes exclude each other"),
        ({"samples": 3}, "--samples 3 must be at least 16"),
        ({"divergence": 1.5}, "--divergence 1.5 must be from 0 to 1"),
        ({"minutes": 0.0}, "--minutes 0.0 must be more than 0"),
        ({"learning_rate": 0.0}, "--learning-rate 0.0"),
        ({"depths": 17}, "--depths 17 must be at most 16"),
        ({"length": 8, "depths": 5}, "--length 8 is too short for --depths 5"),
    ],
)
def test_what_cannot_work_is_refused(given: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        options(Path("somewhere"), **given)
