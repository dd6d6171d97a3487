"""Prompts as they are read from files of both kinds."""

from pathlib import Path

import pytest

from archerfish.compress.drafters.prompts import read_prompts
from archerfish.errors import ConfigError


def test_a_text_has_one_prompt_a_line(tmp_path: Path) -> None:
    file = tmp_path / "prompts.txt"
    file.write_bytes(b"Once upon a time\r\n\nThe sea\n")
    assert read_prompts(file) == ["Once upon a time", "The sea"]


def test_objects_have_prompts_or_messages(tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "The sea"}\n{"messages": [{"role": "user", "content": "Hello"}]}\n')
    assert read_prompts(file) == ["The sea", [{"role": "user", "content": "Hello"}]]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"prompt": "a"}\n{"prompt"', "line 2 of .* is not valid JSON"),
        ('{"prompt": "a"}\n{"question": "b"}', "line 2 of .* must have a prompt or messages"),
        ('{"prompt": "a", "id": 3}\n', "line 1 of .* and nothing else"),
        ('{"prompt": ""}\n', "line 1 of .* empty prompt"),
        ('{"prompt": "a"}\n{"prompt": "a"}\n', "fewer than two prompts"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text(text)
    with pytest.raises(ConfigError, match=says):
        read_prompts(file)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--prompts: cannot read"):
        read_prompts(tmp_path / "none.txt")
