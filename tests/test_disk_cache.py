"""What is stored comes back in the next process, and nothing that is wrong with a file does any harm."""

import logging
from pathlib import Path

import pytest

from archerfish.disk_cache import DiskCache, cache_directory


def open_cache(directory: Path, version: str = "1") -> DiskCache:
    return DiskCache("subject", version, directory)


def test_a_stored_value_is_found_by_other_processes(tmp_path: Path) -> None:
    open_cache(tmp_path).put("a", 1)
    open_cache(tmp_path).put("b", [2])
    assert (open_cache(tmp_path).get("a"), open_cache(tmp_path).get("b"), open_cache(tmp_path).get("c")) == (
        1,
        [2],
        None,
    )
    assert [path.name for path in tmp_path.iterdir()] == ["subject.json"]


def test_the_value_stored_last_counts(tmp_path: Path) -> None:
    cache = open_cache(tmp_path)
    cache.put("a", 1)
    cache.put("a", 2)
    assert cache.get("a") == open_cache(tmp_path).get("a") == 2


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "1", '{"version": "1"}', '{"version": "1", "entries": [1]}', '{"version": "0", "entries": {}}'],
)
def test_a_file_that_is_damaged_or_of_another_version_is_ignored_and_replaced(
    tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "subject.json").write_text(text)
    with caplog.at_level(logging.INFO, "archerfish"):
        assert open_cache(tmp_path).get("a") is None
    assert "subject.json is ignored" in caplog.text
    open_cache(tmp_path).put("a", 3)
    assert open_cache(tmp_path).get("a") == 3


def test_a_file_that_is_no_text_is_ignored(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "subject.json").write_bytes(b"\xff\xfe\xff")
    with caplog.at_level(logging.INFO, "archerfish"):
        assert open_cache(tmp_path).get("a") is None
    assert "cannot be read" in caplog.text


def test_a_directory_that_cannot_be_made_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    cache = open_cache(tmp_path / "file")
    with caplog.at_level(logging.INFO, "archerfish"):
        cache.put("a", 1)
    assert "cannot be written" in caplog.text
    assert cache.get("a") == 1


def test_it_lies_in_the_cache_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_directory() == tmp_path / "archerfish"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert DiskCache("subject", "1").path == tmp_path / ".cache" / "archerfish" / "subject.json"
