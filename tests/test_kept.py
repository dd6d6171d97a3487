"""What is kept comes back in the next process, and nothing that is wrong with a file does any harm."""

import logging
from pathlib import Path

import pytest

from archerfish.kept import Kept, cache_directory


def kept(directory: Path, version: str = "1") -> Kept:
    return Kept("subject", version, directory)


def test_what_was_kept_is_found_by_others(tmp_path: Path) -> None:
    kept(tmp_path).keep("a", 1)
    kept(tmp_path).keep("b", [2])
    assert (kept(tmp_path).find("a"), kept(tmp_path).find("b"), kept(tmp_path).find("c")) == (1, [2], None)
    assert [path.name for path in tmp_path.iterdir()] == ["subject.json"]


def test_what_was_kept_last_holds(tmp_path: Path) -> None:
    one = kept(tmp_path)
    one.keep("a", 1)
    one.keep("a", 2)
    assert one.find("a") == kept(tmp_path).find("a") == 2


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "1", '{"version": "1"}', '{"version": "1", "entries": [1]}', '{"version": "0", "entries": {}}'],
)
def test_a_file_that_is_damaged_or_of_another_version_is_ignored_and_replaced(
    tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "subject.json").write_text(text)
    with caplog.at_level(logging.INFO, "archerfish"):
        assert kept(tmp_path).find("a") is None
    assert "subject.json is ignored" in caplog.text
    kept(tmp_path).keep("a", 3)
    assert kept(tmp_path).find("a") == 3


def test_a_file_that_is_no_text_is_ignored(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "subject.json").write_bytes(b"\xff\xfe\xff")
    with caplog.at_level(logging.INFO, "archerfish"):
        assert kept(tmp_path).find("a") is None
    assert "cannot be read" in caplog.text


def test_a_directory_that_cannot_be_made_is_told_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    one = kept(tmp_path / "file")
    with caplog.at_level(logging.INFO, "archerfish"):
        one.keep("a", 1)
    assert "cannot be written" in caplog.text
    assert one.find("a") == 1


def test_it_lies_in_the_cache_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_directory() == tmp_path / "archerfish"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert Kept("subject", "1").path == tmp_path / ".cache" / "archerfish" / "subject.json"
