"""Running batches: every line is answered once, in order, and if a batch ends early, each line has the reason."""

import asyncio
import json
import logging
from typing import Any

import pytest

from archerfish.errors import EngineStopped, InvalidParameter, PromptTooLong
from archerfish.jobs import runner
from archerfish.jobs.lines import RunnerSettings
from archerfish.jobs.records import BatchStatus, LineResult, RequestCounts
from archerfish.jobs.runner import BatchRunner
from archerfish.jobs.store import JobStore
from tests.jobs.working import (
    CHAT,
    PROMPT,
    Clock,
    Gate,
    again,
    contents,
    echo,
    ids,
    jsonl,
    line,
    lines,
    new_batch,
    no_wait,
    read,
    run_all,
    within,
)


def runner_of(store: JobStore, answer: Any, **settings: Any) -> BatchRunner:
    chosen = RunnerSettings(**{"group_seconds": 0.0, "poll_seconds": 3600.0, **settings})
    return BatchRunner(store, answer, settings=chosen, wait=no_wait)


def test_a_batch_from_beginning_to_end(store: JobStore, clock: Clock) -> None:
    batch = new_batch(store, jsonl(b"\n", line("a"), line("b", body={"text": "ü\u2028"})))
    clock.now += 5
    run_all(store, echo)
    done = again(store, batch)
    assert (done.status, done.counts) == (BatchStatus.COMPLETED, RequestCounts(2, 2, 0))
    assert done.in_progress_at == done.finalizing_at == done.completed_at == int(clock.now)
    assert (done.error_file_id, done.errors) == (None, ())
    assert done.output_file_id is not None
    first, second = read(store, done.output_file_id)
    assert first.pop("id").startswith("batch_req_")
    assert first == {
        "custom_id": "a",
        "response": {
            "status_code": 200,
            "request_id": "req_a",
            "body": {"echo": {"text": "to a"}, "tenant": "", "endpoint": CHAT},
        },
        "error": None,
    }
    assert second["response"]["body"]["echo"] == {"text": "ü\u2028"}
    output = store.files.get(done.output_file_id)
    assert (output.purpose, output.filename) == ("batch_output", f"{batch.batch_id}_output.jsonl")
    assert store.work.progress(batch.batch_id).answered == set()  # The file has them now.


def test_bad_inputs_fail_with_their_lines(store: JobStore) -> None:
    batch = new_batch(store, jsonl(line("a"), b"{\n", line("a")))
    run_all(store, echo)
    failed = again(store, batch)
    assert (failed.status, failed.counts.total) == (BatchStatus.FAILED, 0)
    assert failed.failed_at is not None and failed.in_progress_at is None
    shown = failed.as_object()["errors"]
    assert shown["object"] == "list"
    assert [(error["line"], error["code"]) for error in shown["data"]] == [
        (2, "invalid_json_line"),
        (3, "duplicate_custom_id"),
    ]


def test_errors_of_lines_go_to_the_error_file(store: JobStore, caplog: pytest.LogCaptureFixture) -> None:
    async def answer(endpoint: str, body: bytes, custom_id: str, tenant: str) -> LineResult:
        if custom_id == "request-1":
            return LineResult(404, {"error": {"message": "no such model"}}, "req_1")
        if custom_id == "request-2":
            raise InvalidParameter("top_p", 3, "it is too large")
        if custom_id == "request-3":
            raise PromptTooLong(100, 50)
        if custom_id == "request-4":
            raise RuntimeError("what only the log may show")
        if custom_id == "request-5":
            return LineResult(200, {"number": float("inf")}, "req_5")
        return await echo(endpoint, body, custom_id, tenant)

    batch = new_batch(store, lines(7))
    run_all(store, answer)
    done = again(store, batch)
    assert (done.status, done.counts) == (BatchStatus.COMPLETED, RequestCounts(7, 2, 5))
    assert ids(read(store, done.output_file_id)) == ["request-0", "request-6"]
    errors = read(store, done.error_file_id)
    assert ids(errors) == [f"request-{number}" for number in range(1, 6)]
    assert [error["response"]["status_code"] for error in errors] == [404, 400, 400, 500, 500]
    assert all(error["error"] is None for error in errors)
    assert errors[1]["response"]["body"]["error"]["param"] == "top_p"
    assert "only the log" not in json.dumps(errors[3]) and "only the log" in caplog.text
    assert store.files.get(done.error_file_id or "").filename == f"{batch.batch_id}_error.jsonl"


def test_answers_in_any_order_make_files_in_the_input_s(store: JobStore) -> None:
    async def work() -> None:
        gate = Gate()
        runner = runner_of(store, gate, max_in_flight=8)
        runner.start()
        await gate.until(8)
        for number in (7, 0, 3, 6, 1, 2, 5, 4):
            gate.answer(f"request-{number}")
        done = await runner.finished(batch.batch_id)
        assert ids(read(store, done.output_file_id)) == [f"request-{number}" for number in range(8)]
        await runner.stop()

    batch = new_batch(store, lines(8))
    within(work)


def test_no_more_lines_are_in_flight_than_allowed(store: JobStore) -> None:
    running = most = 0

    async def answer(endpoint: str, body: bytes, custom_id: str, tenant: str) -> LineResult:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        return await echo(endpoint, body, custom_id, tenant)

    batch = new_batch(store, lines(100))
    run_all(store, answer, settings=RunnerSettings(max_in_flight=5, poll_seconds=3600.0))
    assert (most, again(store, batch).counts.completed) == (5, 100)


def test_results_are_saved_in_groups(store: JobStore, monkeypatch: pytest.MonkeyPatch) -> None:
    groups: list[int] = []
    record = store.work.record
    monkeypatch.setattr(
        store.work, "record", lambda batch_id, entries: (groups.append(len(entries)), record(batch_id, entries))
    )
    new_batch(store, lines(640))
    run_all(store, echo, settings=RunnerSettings(max_in_flight=64, poll_seconds=3600.0))
    assert sum(groups) == 640
    assert len(groups) <= 20  # At best 10; never one for each.


def test_batches_run_one_after_another(store: JobStore) -> None:
    async def work() -> None:
        gate = Gate()
        runner = runner_of(store, gate)
        runner.start()
        await gate.until(2)
        assert sorted(gate.waiting) == ["request-0", "request-1"]
        for custom_id in list(gate.waiting):
            gate.answer(custom_id)
        await runner.finished(first.batch_id)
        await gate.until(1)
        gate.answer("late")
        await runner.finished(second.batch_id)
        await runner.stop()
        assert gate.seen == ["request-0", "request-1", "late"]

    first, second = new_batch(store, lines(2)), new_batch(store, jsonl(line("late")))
    within(work)


def test_a_batch_that_comes_later_is_noticed(store: JobStore) -> None:
    async def work() -> None:
        runner = runner_of(store, echo)
        runner.start()
        for _ in range(3):
            batch = new_batch(store, lines(2))
            # From another thread, as a service's routes do.
            await asyncio.to_thread(runner.wake)
            assert (await runner.finished(batch.batch_id)).status is BatchStatus.COMPLETED
        await runner.stop()

    within(work)


def test_waiting_batches_are_validated_and_cancelled_at_once(store: JobStore) -> None:
    async def work() -> None:
        gate = Gate()
        runner = runner_of(store, gate)
        runner.start()
        await gate.until(1)
        bad, good = new_batch(store, b"{"), new_batch(store, lines(1))
        store.batches.cancel(good.batch_id)
        runner.wake()
        assert (await runner.finished(bad.batch_id)).status is BatchStatus.FAILED
        assert (await runner.finished(good.batch_id)).status is BatchStatus.CANCELLED
        assert list(gate.waiting) == ["first"]
        await runner.stop()

    new_batch(store, jsonl(line("first")))
    within(work)


def test_cancelling_saves_what_is_done_and_reports_what_is_not(store: JobStore, clock: Clock) -> None:
    async def work() -> None:
        gate = Gate()
        runner = runner_of(store, gate, max_in_flight=2)
        runner.start()
        await gate.until(2)
        gate.answer("request-0")
        await gate.until(2)
        clock.now += 7
        store.batches.cancel(batch.batch_id)
        runner.wake()
        done = await runner.finished(batch.batch_id)
        assert sorted(gate.cancelled) == ["request-1", "request-2"]
        assert (done.status, done.counts) == (BatchStatus.CANCELLED, RequestCounts(5, 1, 4))
        assert done.cancelling_at == done.cancelled_at == int(clock.now)
        assert ids(read(store, done.output_file_id)) == ["request-0"]
        errors = read(store, done.error_file_id)
        assert ids(errors) == [f"request-{number}" for number in range(1, 5)]
        assert {(error["response"], error["error"]["code"]) for error in errors} == {(None, "batch_cancelled")}
        await runner.stop()

    batch = new_batch(store, lines(5))
    within(work)


def test_a_batch_cancelled_before_it_was_looked_at_has_no_files(store: JobStore) -> None:
    batch = new_batch(store, b"not even checked")
    store.batches.cancel(batch.batch_id)
    run_all(store, echo)
    done = again(store, batch)
    assert (done.status, done.output_file_id, done.error_file_id) == (BatchStatus.CANCELLED, None, None)


def test_an_end_of_the_window_saves_what_is_done_and_reports_what_is_not(store: JobStore, clock: Clock) -> None:
    async def work() -> None:
        gate = Gate()
        runner = runner_of(store, gate, max_in_flight=2)
        runner.start()
        await gate.until(2)
        gate.answer("request-1")
        await gate.until(2)
        clock.now += 59
        runner.wake()
        gate.answer("request-2")
        await gate.until(2)
        clock.now += 1
        runner.wake()
        done = await runner.finished(batch.batch_id)
        assert (done.status, done.counts) == (BatchStatus.EXPIRED, RequestCounts(5, 2, 3))
        assert done.expired_at == int(clock.now) == done.expires_at
        assert ids(read(store, done.output_file_id)) == ["request-1", "request-2"]
        errors = read(store, done.error_file_id)
        assert ids(errors) == ["request-0", "request-3", "request-4"]
        assert {error["error"]["code"] for error in errors} == {"batch_expired"}
        await runner.stop()

    batch = new_batch(store, lines(5), window="1m")
    within(work)


def test_a_window_that_ended_without_a_runner(store: JobStore, clock: Clock) -> None:
    batch = new_batch(store, lines(3), window="2h")
    clock.now += 7200
    run_all(store, echo)
    done = again(store, batch)
    assert (done.status, done.counts) == (BatchStatus.EXPIRED, RequestCounts(3, 0, 3))
    assert done.output_file_id is None


def test_a_window_that_ends_with_the_last_answer_has_cut_nothing_short(store: JobStore, clock: Clock) -> None:
    async def answer(endpoint: str, body: bytes, custom_id: str, tenant: str) -> LineResult:
        clock.now += 3600
        return await echo(endpoint, body, custom_id, tenant)

    batch = new_batch(store, lines(1), window="1h")
    run_all(store, answer)
    done = again(store, batch)
    assert (done.status, done.counts) == (BatchStatus.COMPLETED, RequestCounts(1, 1, 0))


def test_stopping_saves_what_is_done_and_records_nothing_else(store: JobStore) -> None:
    async def interrupted() -> None:
        gate = Gate()
        runner = runner_of(store, gate, max_in_flight=3)
        task = runner.start()
        await gate.until(3)
        gate.answer("request-1")
        gate.fail("request-2", EngineStopped("the service is shutting down"))
        await runner.stop()
        task.result()
        assert gate.waiting == {}

    batch = new_batch(store, lines(5))
    within(interrupted)
    assert (again(store, batch).status, again(store, batch).counts.failed) == (BatchStatus.IN_PROGRESS, 0)
    assert store.work.progress(batch.batch_id).answered <= {2}
    run_all(store, echo)
    done = again(store, batch)
    assert ids(read(store, done.output_file_id)) == [f"request-{number}" for number in range(5)]
    assert done.counts == RequestCounts(5, 5, 0)


def test_stopping_may_leave_lines_time_to_finish(store: JobStore) -> None:
    async def work() -> None:
        gate = Gate()
        runner = runner_of(store, gate, max_in_flight=2)
        runner.start()
        await gate.until(2)
        stopping = asyncio.ensure_future(runner.stop(grace_seconds=30.0))
        await asyncio.sleep(0)
        for custom_id in list(gate.waiting):
            gate.answer(custom_id)
        await stopping
        assert gate.seen == ["request-0", "request-1"]

    batch = new_batch(store, lines(5))
    within(work)
    assert store.work.progress(batch.batch_id).answered == {1, 2}
    assert again(store, batch).counts == RequestCounts(5, 2, 0)


def test_only_one_runner_runs_a_directory(store: JobStore, clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        gate = Gate()
        first = runner_of(store, gate)
        first.start()
        await gate.until(1)
        with JobStore(store.directory, clock) as same:
            waited = asyncio.Event()

            async def answer(*_: Any) -> LineResult:
                return LineResult(200, {"by": "second"}, "req")

            def notice(entry: logging.LogRecord) -> bool:
                if "another process" in entry.getMessage():
                    waited.set()
                return True

            second = BatchRunner(same, answer, settings=RunnerSettings(poll_seconds=0.01), wait=no_wait)
            logger = logging.getLogger("archerfish")
            logger.addFilter(notice)
            with caplog.at_level(logging.INFO, "archerfish"):
                second.start()
                await waited.wait()
            logger.removeFilter(notice)
            await first.stop()
            done = await second.finished(batch.batch_id)
            await second.stop()
        [record] = read(store, done.output_file_id)
        assert record["response"]["body"] == {"by": "second"}

    batch = new_batch(store, lines(1))
    within(work)


def test_an_input_that_goes_away_ends_its_batch_alone(store: JobStore) -> None:
    lost, cut, changed, good = (new_batch(store, lines(3)) for _ in range(4))
    folder = store.directory / "files"
    (folder / lost.input_file_id).unlink()

    async def answer(endpoint: str, body: bytes, custom_id: str, tenant: str) -> LineResult:
        (folder / changed.input_file_id).write_bytes(lines(2))
        (folder / cut.input_file_id).write_bytes(lines(3)[:-20])
        return await echo(endpoint, body, custom_id, tenant)

    # The first batch to be answered damages the others after they were found good.
    damaging = new_batch(store, lines(1))
    with store._database.transaction() as connection:
        connection.execute("UPDATE batches SET number = 0 WHERE batch_id = ?", (damaging.batch_id,))
    for batch in (cut, changed, good, damaging):
        store.work.begin(batch.batch_id, 1 if batch is damaging else 3)
    run_all(store, answer)
    codes = {name: [error.code for error in again(store, batch).errors] for name, batch in
             {"lost": lost, "cut": cut, "changed": changed, "good": good}.items()}  # fmt: skip
    assert codes == {
        "lost": ["input_file_missing"],
        "cut": ["invalid_json_line"],
        "changed": ["input_file_changed"],
        "good": [],
    }
    assert ids(read(store, again(store, changed).output_file_id)) == ["request-0", "request-1"]
    assert again(store, good).counts.completed == 3


def test_a_mistake_in_one_batch_does_not_keep_the_others(store: JobStore, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = new_batch(store, lines(1)), new_batch(store, lines(1))
    write_files = store.work._write_files

    def broken(batch: Any, outcome: Any) -> None:
        if batch.batch_id == first.batch_id:
            raise ZeroDivisionError
        write_files(batch, outcome)

    monkeypatch.setattr(store.work, "_write_files", broken)
    run_all(store, echo)
    assert again(store, first).status is BatchStatus.FAILED
    assert again(store, second).status is BatchStatus.COMPLETED
    third = new_batch(store, lines(1))
    monkeypatch.setattr(runner, "validate", lambda *_: 1 / 0)
    run_all(store, echo)
    assert [error.code for error in again(store, third).errors] == ["internal_error"]


def test_nothing_is_left_behind(store: JobStore) -> None:
    batch = new_batch(store, lines(3))
    run_all(store, echo)
    done = again(store, batch)
    assert contents(store.directory) == sorted([batch.input_file_id, done.output_file_id or ""])
    assert PROMPT.max_in_flight == 64
