"""`archerfish batch`: a file of requests in, a file of answers out, and nothing answered twice."""

import errno
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from archerfish.jobs import offline
from archerfish.jobs.partial_output import PartialOutput
from tests.cli.running import MODEL, archerfish, assert_refused
from tests.cli.running import Run as Result

NAMED = (*MODEL, "--served-model-name", "random")
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


def line(custom_id: str, body: dict[str, Any], url: str = COMPLETIONS) -> dict[str, Any]:
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": body}


def completion(custom_id: str, **changes: Any) -> dict[str, Any]:
    body = {"prompt": f"The sea {custom_id}", "max_tokens": 4, "temperature": 0, "ignore_eos": True}
    return line(custom_id, {**body, **changes})


class Files:
    """An input and an output in a directory."""

    def __init__(self, directory: Path) -> None:
        self.source, self.output = directory / "in.jsonl", directory / "out.jsonl"
        self.partial = directory / "out.jsonl.partial"

    def write(self, *records: Any) -> None:
        self.source.write_text("".join(json.dumps(record) + "\n" for record in records))

    def run(self, *arguments: str) -> Result:
        return archerfish("batch", "-i", str(self.source), "-o", str(self.output), *(arguments or NAMED))

    def answers(self) -> list[dict[str, Any]]:
        return [json.loads(text) for text in self.output.read_text().splitlines()]

    def replies(self) -> dict[str, str]:
        """The id of each reply, which differs every time a line is answered."""
        return {record["custom_id"]: record["response"]["body"]["id"] for record in self.answers()}


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


@pytest.fixture
def requested(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The lines that come to the engine."""
    seen: list[str] = []
    answer = offline.OfflineAnswers.answer

    def noting(self: offline.OfflineAnswers, lines: Iterator[Any]) -> Iterator[Any]:
        def passing() -> Iterator[Any]:
            for one in lines:
                seen.append(one.custom_id)
                yield one

        return answer(self, passing())

    monkeypatch.setattr(offline.OfflineAnswers, "answer", noting)
    return seen


def test_requests_in_answers_out(files: Files) -> None:
    files.write(
        line("long", {"prompt": "Once upon a time", "max_tokens": 12, "temperature": 0, "ignore_eos": True}),
        line("two", {"prompt": ["The sea", [5, 6]], "max_tokens": 3, "n": 2, "logprobs": 1, "model": "random"}),
        completion("short"),
    )
    result = files.run()
    assert (result.exit_code, result.stdout) == (0, "")
    long, two, short = files.answers()
    assert [record["custom_id"] for record in (long, two, short)] == ["long", "two", "short"]
    assert all(record["error"] is None and record["response"]["status_code"] == 200 for record in (long, two, short))
    body = long["response"]["body"]
    assert (body["object"], body["model"], body["usage"]["completion_tokens"]) == ("text_completion", "random", 12)
    [choice] = body["choices"]
    alone = archerfish(
        "generate", "Once upon a time", *MODEL, "--max-tokens", "12", "--temperature", "0", "--ignore-eos", "--json"
    )
    assert choice["text"] == json.loads(alone.stdout)["outputs"][0]["text"]
    assert (choice["finish_reason"], choice["logprobs"]) == ("length", None)
    choices = two["response"]["body"]["choices"]
    assert [choice["index"] for choice in choices] == [0, 1, 2, 3]
    for choice in choices:
        logprobs = choice["logprobs"]
        assert len(logprobs["tokens"]) == len(logprobs["token_logprobs"]) == len(logprobs["text_offset"]) == 3
        # The likeliest, and the one that was drawn if that is another.
        assert all(len(top) in (1, 2) for top in logprobs["top_logprobs"])
    assert not files.partial.exists()


def test_chats_and_openai_s_client_s_view_of_them(files: Files) -> None:
    types = pytest.importorskip("openai.types")
    messages = [{"role": "user", "content": "Hello"}]
    body = {"messages": messages, "max_completion_tokens": 4, "logprobs": True, "top_logprobs": 2}
    files.write(line("chat", body, CHAT), completion("plain", logprobs=2))
    assert archerfish(
        "batch", "-i", str(files.source), "-o", str(files.output), "--model", "minnow", "--threads", "1"
    ).exit_code == 0  # fmt: skip
    chat, plain = (record["response"]["body"] for record in files.answers())
    seen = types.chat.ChatCompletion.model_validate(chat)
    assert seen.choices[0].message.role == "assistant" and seen.model == "minnow"
    assert seen.choices[0].logprobs is not None and seen.choices[0].logprobs.content is not None
    assert all(len(token.top_logprobs) == 2 for token in seen.choices[0].logprobs.content)
    assert types.Completion.model_validate(plain).usage.completion_tokens == 4


def test_a_line_that_is_refused_disturbs_no_other(files: Files) -> None:
    files.write(
        completion("a"),
        completion("b", tempratur=1),
        completion("c", stream=True),
        completion("d", model="gpt-4o"),
        completion("e", prompt=[100_000]),
        completion("f", prompt="long " * 3000),
        line("h", [1]),  # type: ignore[arg-type]
        completion("g"),
    )
    result = files.run()
    assert result.exit_code == 2
    assert "6 of 8 requests were refused or failed" in result.stderr and "line 2, 'b': tempratur" in result.stderr
    records = files.answers()
    assert [record["response"]["status_code"] for record in records] == [200, 400, 400, 404, 400, 400, 400, 200]
    errors = [record["response"]["body"]["error"] for record in records[1:6]]
    assert [error["param"] for error in errors] == ["tempratur", "stream", "model", "prompt", None]
    assert "tokens" in errors[4]["message"]


def test_what_was_answered_is_not_answered_again(
    files: Files, requested: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    files.write(*(completion(name) for name in "abcd"))
    assert files.run().exit_code == 0
    first = files.replies()
    assert sorted(requested) == list("abcd")
    requested.clear()
    with monkeypatch.context() as patched:
        # Nothing is missing, so the model is not even loaded.
        patched.delattr("archerfish.cli.batch.open_model")
        assert files.run().exit_code == 0
    assert (requested, files.replies()) == ([], first)
    # A new line, a changed one, and another order.
    files.write(*(completion(name) for name in "dxca"), completion("b", max_tokens=2))
    assert files.run().exit_code == 0
    assert sorted(requested) == ["b", "x"]
    second = files.replies()
    assert list(second) == list("dxcab")
    assert {name: second[name] for name in "acd"} == {name: first[name] for name in "acd"} and second["b"] != first["b"]
    # Another model has to answer everything itself.
    requested.clear()
    assert files.run(*MODEL, "--served-model-name", "other").exit_code == 0
    assert len(requested) == 5


def test_refused_lines_are_tried_again(files: Files, requested: list[str]) -> None:
    files.write(completion("a"), completion("b", n=0))
    assert files.run().exit_code == 2
    files.write(completion("a"), completion("b", n=1))
    requested.clear()
    assert files.run().exit_code == 0
    assert requested == ["b"] and list(files.replies()) == ["a", "b"]


def test_a_run_that_breaks_off_goes_on(
    files: Files, requested: list[str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    files.write(*(completion(str(number)) for number in range(12)))
    append, written = PartialOutput.append, []

    def interrupted(self: PartialOutput, custom_id: str, text: str) -> None:
        if len(written) == 5:
            raise KeyboardInterrupt
        append(self, custom_id, text)
        written.append(custom_id)

    with monkeypatch.context() as patched:
        patched.setattr(PartialOutput, "append", interrupted)
        with caplog.at_level(logging.INFO, "archerfish"):
            assert files.run().exit_code == 130
    assert "out.jsonl.partial; run the same command again" in caplog.text
    assert not files.output.exists()
    records = files.partial.read_text().splitlines()
    assert [json.loads(text)["custom_id"] for text in records] == written
    # Killed in the middle of a line, it leaves a piece of it.
    with files.partial.open("a") as stream:
        stream.write('{"id": "batch_req_')
    requested.clear()
    assert files.run().exit_code == 0
    assert sorted(requested, key=int) == [str(number) for number in range(12) if str(number) not in written]
    assert list(files.replies()) == [str(number) for number in range(12)]
    assert [
        text for text in files.output.read_text().splitlines() if json.loads(text)["custom_id"] in written
    ] == sorted(records, key=lambda text: int(json.loads(text)["custom_id"]))
    assert not files.partial.exists()


def test_a_full_disk_loses_nothing(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    files.write(completion("a"), completion("b"))

    def no_room(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("archerfish.jobs.partial_output.os.fsync", no_room)
        result = files.run()
    assert result.exit_code == 2 and "free some space, then run the same command again" in result.stderr
    assert sorted(path.name for path in files.source.parent.iterdir()) == ["in.jsonl", "out.jsonl.partial"]
    assert files.run().exit_code == 0
    assert list(files.replies()) == ["a", "b"]


def test_an_output_of_something_else_is_left_alone(files: Files) -> None:
    files.write(completion("a"))
    for content, says in (
        ('{"custom_id": "z"}\n', "answers 'z', which is not in the input"),
        ("# Notes\n", "is not the output of a batch"),
        ("[1]\n", "is not the output of a batch"),
    ):
        files.output.write_text(content)
        assert_refused(files.run(), says)
        assert files.output.read_text() == content


def test_an_input_that_is_not_good_is_refused_with_its_lines(files: Files) -> None:
    files.source.write_text("{\n" * 7)
    assert_refused(files.run(), "line 1: the line is not valid JSON")
    files.write(completion("a"), completion("a"))
    assert_refused(files.run(), "line 2: custom_id 'a' of line 2 is already used by line 1")
    files.write(line("a", {}, "/v1/audio"))
    assert_refused(files.run(), "'/v1/audio'")
    files.source.write_text("")
    assert_refused(files.run(), "holds no requests")
    assert not files.output.exists()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--reasoning-parser", "o1"), "there is no reasoning parser 'o1': choose one of think"),
        (("--tool-call-format", "x"), "there is no tool format 'x': choose one of"),
    ],
)
def test_an_unknown_format_is_refused_before_anything_is_loaded(
    files: Files, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], says: str
) -> None:
    files.write(completion("a"))
    monkeypatch.delattr("archerfish.cli.batch.open_model")
    assert_refused(files.run(*NAMED, *options), says)
    environ = {"ARCHERFISH_" + options[0].removeprefix("--").replace("-", "_").upper(): options[1]}
    in_out = ("-i", str(files.source), "-o", str(files.output))
    assert_refused(archerfish("batch", *in_out, *NAMED, environ=environ), says)


def test_a_model_may_have_several_names(files: Files) -> None:
    files.write(completion("a", model="first"), completion("b", model="second"), completion("c", model="third"))
    assert files.run(*MODEL, "--served-model-name", "first", "second").exit_code == 2
    replies = [record["response"] for record in files.answers()]
    assert [one["status_code"] for one in replies] == [200, 200, 404]
    assert replies[1]["body"]["model"] == "first"


def test_files_that_cannot_be(files: Files, tmp_path: Path) -> None:
    assert_refused(files.run(), "cannot read")
    files.write(completion("a"))
    same = archerfish("batch", "-i", str(files.source), "-o", str(files.source), *NAMED)
    assert_refused(same, "the same file")
    for path in (tmp_path, tmp_path / "none" / "out"):
        assert_refused(archerfish("batch", "-i", str(files.source), "-o", str(path), *NAMED), "--output")


def test_an_input_that_changes_meanwhile_is_noticed(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    files.write(completion("a"), completion("b"))

    def changing(self: PartialOutput, wanted: Any) -> set[str]:
        files.write(completion("b"), completion("c"))
        return load(self, wanted)

    load = PartialOutput.load
    monkeypatch.setattr(PartialOutput, "load", changing)
    result = files.run()
    assert result.exit_code == 2 and "changed while" in result.stderr
