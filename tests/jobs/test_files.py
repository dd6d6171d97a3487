"""Files: what is taken in stays, what is refused leaves no trace, and tenants see only their own."""

import errno
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from archerfish.errors import ConfigError, FileTooLarge, InvalidParameter, NotFound, WrongState
from archerfish.jobs import unpublished_files
from archerfish.jobs.store import JobStore
from tests.jobs.working import CHAT, Clock, contents, echo, lines, new_batch, run_all, upload


def test_an_upload_is_there_as_it_was_sent(store: JobStore, clock: Clock) -> None:
    file = store.files.upload("a.jsonl", "batch", iter([b"one\n", b"", b"two\n"]))
    assert store.files.get(file.file_id) == file
    with store.files.open(file.file_id) as stream:
        assert stream.read() == b"one\ntwo\n"
    assert file.as_object() == {
        "id": file.file_id,
        "object": "file",
        "bytes": 8,
        "created_at": int(clock.now),
        "expires_at": None,
        "filename": "a.jsonl",
        "purpose": "batch",
        "status": "processed",
        "status_details": None,
    }
    assert file.file_id.startswith("file-")


def test_files_outlive_the_process(store: JobStore) -> None:
    file_id = upload(store, b"stored")
    # As after a SIGKILL: the first store is never closed.
    with JobStore(store.directory) as second, second.files.open(file_id) as stream:
        assert stream.read() == b"stored"


def test_objects_are_what_openai_s_client_knows(store: JobStore) -> None:
    types = pytest.importorskip("openai.types")
    file = store.files.get(upload(store, b"x"))
    batch = store.batches.create(file.file_id, CHAT, metadata={"a": "b"})
    assert types.FileObject.model_validate(file.as_object(), strict=True).id == file.file_id
    assert types.Batch.model_validate(batch.as_object(), strict=True).status == "validating"


@pytest.mark.parametrize(
    ("given", "stored_name"),
    [
        ("../../etc/passwd", "passwd"),
        ("C:\\dir\\in.jsonl", "in.jsonl"),
        ("", "file"),
        ("a\x00b\n.jsonl", "ab.jsonl"),
        ("\ud800.jsonl", "?.jsonl"),
        ("ü" * 300, "ü" * 255),
    ],
)
def test_names_are_only_names(store: JobStore, given: str, stored_name: str) -> None:
    assert store.files.upload(given, "batch", [b"x"]).filename == stored_name


def test_only_files_for_batches_are_taken(store: JobStore) -> None:
    for purpose in ("fine-tune", "batch_output", ""):
        with pytest.raises(InvalidParameter, match="purpose"):
            store.files.upload("a", purpose, [b"x"])


def test_what_is_too_large_leaves_no_trace(tmp_path: Path) -> None:
    with JobStore(tmp_path, max_file_bytes=10) as store:
        assert store.files.upload("a", "batch", [b"12345", b"67890"]).num_bytes == 10
        with pytest.raises(FileTooLarge, match="10 bytes"):
            store.files.upload("a", "batch", [b"12345", b"678901"])
        assert len(contents(tmp_path)) == len(store.files.page().items) == 1


def test_an_upload_that_breaks_off_leaves_no_trace(store: JobStore) -> None:
    def chunks() -> Iterator[bytes]:
        yield b"half"
        raise ConnectionError("gone")

    with pytest.raises(ConnectionError):
        store.files.upload("a", "batch", chunks())
    with store.files.begin_upload() as piecewise:
        piecewise.write(b"half")
    assert contents(store.directory) == [] and store.files.page().items == []


def test_deleting(store: JobStore) -> None:
    file_id = upload(store, b"x")
    reading = store.files.open(file_id)
    store.files.delete(file_id)
    assert reading.read() == b"x"
    reading.close()
    assert contents(store.directory) == []
    for call in (store.files.get, store.files.open, store.files.delete):
        with pytest.raises(NotFound, match=file_id):
            call(file_id)


def test_the_input_of_an_open_batch_stays(store: JobStore) -> None:
    batch = new_batch(store, lines(1))
    with pytest.raises(WrongState, match=batch.batch_id):
        store.files.delete(batch.input_file_id)
    run_all(store, echo)
    store.files.delete(batch.input_file_id)


def test_lists_go_page_by_page_in_either_order(store: JobStore) -> None:
    made = [upload(store, b"x") for _ in range(5)]
    first = store.files.page(limit=2)
    second = store.files.page(limit=2, after=first.items[-1].file_id)
    third = store.files.page(limit=2, after=second.items[-1].file_id)
    assert [file.file_id for page in (first, second, third) for file in page.items] == made[::-1]
    assert [page.has_more for page in (first, second, third)] == [True, True, False]
    assert [file.file_id for file in store.files.page(order="asc", after=made[2]).items] == made[3:]
    assert store.files.page(purpose="batch_output").items == []
    shape = first.as_object()
    assert (shape["object"], shape["first_id"], shape["last_id"], shape["has_more"]) == ("list", made[4], made[3], True)
    assert store.files.page(tenant="nobody").as_object() == {
        "object": "list", "data": [], "first_id": None, "last_id": None, "has_more": False,
    }  # fmt: skip


@pytest.mark.parametrize(
    "options", [{"limit": 0}, {"limit": 10_001}, {"order": "up"}, {"after": "x"}, {"purpose": "x"}]
)
def test_lists_refuse_what_makes_no_sense(store: JobStore, options: dict[str, object]) -> None:
    with pytest.raises(InvalidParameter, match=next(iter(options))):
        store.files.page(**options)


def test_tenants_see_only_their_own_files(store: JobStore) -> None:
    mine, theirs = upload(store, b"mine", "me"), upload(store, b"theirs", "them")
    assert [file.file_id for file in store.files.page(tenant="me").items] == [mine]
    for call in (store.files.get, store.files.open, store.files.delete):
        with pytest.raises(NotFound):
            call(theirs, tenant="me")
        with pytest.raises(NotFound):
            call(mine)
    with pytest.raises(InvalidParameter, match="after"):
        store.files.page(tenant="me", after=theirs)
    assert store.files.get(theirs, tenant="them").num_bytes == 6


@pytest.mark.parametrize("file_id", ["", "../jobs.sqlite", "\ud800", "file-\x00", "ä"])
def test_ids_that_never_were(store: JobStore, file_id: str) -> None:
    with pytest.raises(NotFound):
        store.files.open(file_id)


def test_what_a_killed_process_left_is_swept_away(store: JobStore) -> None:
    uploaded = upload(store, b"stored")
    # Killed between giving a content its place and writing its row, and in the middle of an upload.
    (store.directory / "files" / "file-orphan").write_bytes(b"x")
    (store.directory / "drafts" / "upload-dead").write_bytes(b"x")
    (store.directory / "drafts" / "output-torn").write_bytes(b"x")
    with JobStore(store.directory) as second:
        assert contents(store.directory) == [uploaded, "output-torn"]
        second.files.sweep_outputs()
        assert contents(store.directory) == [uploaded]


def test_uploads_of_living_processes_are_not_swept_away(store: JobStore) -> None:
    with store.files.begin_upload() as first:
        first.write(b"half")
        with JobStore(store.directory) as second, second.files.begin_upload() as other:
            other.write(b"x")
            assert len(contents(store.directory)) == 2
            other.finish("b", "batch")
        assert first.finish("a", "batch").num_bytes == 4
    assert len(contents(store.directory)) == len(store.files.page().items) == 2


def test_without_locks_age_decides_what_is_swept_away(store: JobStore, monkeypatch: pytest.MonkeyPatch) -> None:
    old, young = (store.directory / "drafts" / name for name in ("upload-old", "upload-young"))
    for path in (old, young):
        path.write_bytes(b"x")
    os.utime(old, (1.0, 1.0))

    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(unpublished_files.fcntl, "flock", no_locks)
    with store.files.begin_upload() as third:
        assert contents(store.directory) == sorted(["upload-young", third._draft.path.name])


def test_places_that_cannot_keep_files(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no directory")
    with pytest.raises(ConfigError, match="cannot store files"):
        JobStore(tmp_path / "file")
    (tmp_path / "jobs.sqlite").write_text("no database" * 100)
    with pytest.raises(ConfigError, match=r"jobs\.sqlite cannot be used"):
        JobStore(tmp_path)


def test_a_newer_release_s_store_is_left_alone(tmp_path: Path) -> None:
    JobStore(tmp_path).close()
    connection = sqlite3.connect(tmp_path / "jobs.sqlite")
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(ConfigError, match="newer release"):
        JobStore(tmp_path)


def test_the_database_is_durable(store: JobStore) -> None:
    with store._database.reading() as connection:
        settings = {
            name: connection.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("journal_mode", "synchronous", "auto_vacuum")
        }
    assert settings == {"journal_mode": "wal", "synchronous": 2, "auto_vacuum": 2}
