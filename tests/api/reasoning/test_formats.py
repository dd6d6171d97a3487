"""Which format a name or a chat template stands for."""

import pytest

from archerfish.api.reasoning import FORMATS, choose_format, find_format
from archerfish.errors import ConfigError


@pytest.mark.parametrize(("name", "found"), [("qwen3", "think"), ("step3", "deepseek_r1"), ("mistral", "mistral")])
def test_names_of_vllm_are_taken(name: str, found: str) -> None:
    assert find_format(name) is FORMATS[found]


def test_none_is_no_format() -> None:
    assert find_format("none") is None


def test_an_unknown_name_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(ConfigError, match=r"no reasoning parser 'o1': choose one of think, .*qwen3.*, or none"):
        find_format("o1")


@pytest.mark.parametrize(
    ("template", "found"),
    [
        (None, None),
        ("{{ messages }}", None),
        ("{{ content.split('</think>')[-1] }}", "think"),
        ("[THINK]{{ x }}[/THINK]", "mistral"),
        ("<seed:think></seed:think>", "seed_oss"),
    ],
)
def test_a_template_shows_the_tags(template: str | None, found: str | None) -> None:
    assert choose_format(template) is (None if found is None else FORMATS[found])
