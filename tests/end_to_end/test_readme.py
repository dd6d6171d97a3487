"""What the README shows is what the program writes."""

import re
from functools import partial
from pathlib import Path

import pytest

import archerfish

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")


def test_the_first_example_writes_what_it_says(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, shown = (re.findall(rf"```{kind}\n(.*?)```", README, re.DOTALL)[0] for kind in ("python", "text"))
    # In float32, so that no machine's way of rounding decides a close call.
    monkeypatch.setattr(archerfish, "LLM", partial(archerfish.LLM, dtype="float32", threads=1, max_num_seqs=8))
    exec(code, {})
    assert capsys.readouterr().out == shown
