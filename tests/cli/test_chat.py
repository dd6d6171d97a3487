"""`archerfish chat`: turns in, answers out, and what Ctrl-C stops."""

import json
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from archerfish.cli import chat
from archerfish.cli.conversation import Conversation, Message
from archerfish.engine.outputs import StreamOutput
from archerfish.errors import InvalidParameter, PromptTooLong, RequestError
from archerfish.request import SamplingParams
from tests.cli.running import MODEL, RANDOM_LLAMA, archerfish, assert_refused


class Parrot:
    """Answers with what it heard, word by word, and remembers what it was given."""

    def __init__(self) -> None:
        self.heard: list[list[Message]] = []
        self.interrupts_after: int | None = None
        self.finish_reason = "stop"

    def stream_chat(self, messages: Sequence[Message], params: SamplingParams) -> Iterator[StreamOutput]:
        self.heard.append(list(messages))
        words = messages[-1]["content"].split()
        if words == ["refuse"]:
            raise PromptTooLong(9, 8)
        for place, word in enumerate(words, 1):
            if place == self.interrupts_after:
                signal.raise_signal(signal.SIGINT)
            yield StreamOutput(0, word + " ", [place], None, self.finish_reason if place == len(words) else None, None)


@pytest.fixture
def parrot() -> Parrot:
    return Parrot()


@pytest.fixture
def conversation(parrot: Parrot) -> Conversation:
    return Conversation(parrot.stream_chat, SamplingParams())


def test_a_conversation_remembers_its_turns(parrot: Parrot, conversation: Conversation) -> None:
    list(conversation.answer("one two"))
    list(conversation.answer("three"))
    assert [message["content"] for message in parrot.heard[1]] == ["one two", "one two ", "three"]
    assert [message["role"] for message in conversation.messages] == ["user", "assistant", "user", "assistant"]
    conversation.system = "Be brief"
    conversation.reset()
    assert conversation.messages == [{"role": "system", "content": "Be brief"}]


def test_an_answer_cut_short_is_remembered_as_far_as_it_was_written(conversation: Conversation) -> None:
    answer = conversation.answer("one two three")
    next(answer)
    answer.close()
    assert conversation.messages[-1] == {"role": "assistant", "content": "one "}


def test_a_refused_turn_leaves_no_trace(conversation: Conversation) -> None:
    with pytest.raises(RequestError):
        list(conversation.answer("refuse"))
    assert conversation.messages == []


def test_ctrl_c_stops_the_answer_and_nothing_else(
    parrot: Parrot, conversation: Conversation, capsys: pytest.CaptureFixture[str]
) -> None:
    parrot.interrupts_after = 2
    before = signal.getsignal(signal.SIGINT)
    chat._talk(conversation, iter(["one two three four", "five"]), go_on=True)
    assert capsys.readouterr().out == "one two \nfive \n"
    assert signal.getsignal(signal.SIGINT) is before


def test_a_second_ctrl_c_is_not_held_back() -> None:
    with pytest.raises(KeyboardInterrupt), chat._interrupt_flag() as interrupted:
        signal.raise_signal(signal.SIGINT)
        assert interrupted()
        signal.raise_signal(signal.SIGINT)


def test_orders_are_obeyed_and_unknown_ones_refused(
    parrot: Parrot, conversation: Conversation, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = ["one", "", "/reset", "/system Be brief", "two", "/system", "/nope", "refuse", "/exit", "three"]
    chat._talk(conversation, iter(lines), go_on=True)
    told = capsys.readouterr()
    assert told.out == "one \ntwo \n"
    assert parrot.heard[1] == [{"role": "system", "content": "Be brief"}, {"role": "user", "content": "two"}]
    assert parrot.heard[2][0]["role"] == "user"
    assert "error: there is no /nope" in told.err and "error: the prompt has 9 tokens" in told.err


def test_from_a_pipe_a_refused_turn_ends_the_program(conversation: Conversation) -> None:
    with pytest.raises(RequestError):
        chat._talk(conversation, iter(["/nope", "one"]), go_on=False)


def test_an_answer_cut_off_says_so(
    parrot: Parrot, conversation: Conversation, capsys: pytest.CaptureFixture[str]
) -> None:
    parrot.finish_reason = "length"
    chat._talk(conversation, iter(["one"]), go_on=True)
    assert "--max-tokens" in capsys.readouterr().err


def test_typed_lines_end_with_the_input(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    typed = iter(["one", "two"])

    def type_line(sign: str) -> str:
        assert sign == ""
        try:
            return next(typed)
        except StopIteration:
            raise EOFError from None

    monkeypatch.setattr("builtins.input", type_line)
    assert list(chat._typed_lines()) == ["one", "two"]
    told = capsys.readouterr()
    assert (told.out, told.err) == ("", "> > > \n")


def test_a_real_model_answers_piped_turns() -> None:
    arguments = ("chat", *MODEL, "--max-tokens", "4", "--temperature", "0", "--ignore-eos", "--system", "Be brief")
    result = archerfish(*arguments, stdin="Hello\n\n/reset\nHello\r\nJa, grüße\n".encode())
    assert result.exit_code == 0, result.stderr
    first, second, third = result.stdout.removesuffix("\n").split("\n")
    assert first == second and third
    assert result.stderr.count("Cut off") == 3


def test_bad_turns_from_a_pipe_are_refused() -> None:
    result = archerfish("chat", *MODEL, stdin=b"\xff\n")
    assert result.exit_code == 2 and "error: standard input is not UTF-8 text" in result.stderr


def test_a_model_without_a_chat_template_says_so(tmp_path: Path) -> None:
    for file in RANDOM_LLAMA.glob("*.json"):
        content = json.loads(file.read_text())
        content.pop("chat_template", None)
        (tmp_path / file.name).write_text(json.dumps(content))
    result = archerfish("chat", *MODEL, "--model", str(tmp_path), stdin=b"")
    assert result.exit_code == 2
    assert result.stderr.splitlines()[-1].startswith(f"error: {tmp_path} has no chat template")


def test_one_answer_a_turn() -> None:
    assert_refused(archerfish("chat", *MODEL, "--n", "2"), "--n")


def test_a_template_that_refuses_the_trial_turn_may_still_chat(monkeypatch: pytest.MonkeyPatch) -> None:
    class Picky(Parrot):
        assembly = SimpleNamespace(intake=SimpleNamespace(), recommended={})

        def __enter__(self) -> "Picky":
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def default_sampling_params(self) -> SamplingParams:
            return SamplingParams()

    def refuse(_: object) -> str:
        raise InvalidParameter("messages", "Hello", "start with a system message")

    picky = Picky()
    picky.assembly.intake.chat_text = refuse
    monkeypatch.setattr(chat, "open_model", lambda _: picky)
    assert archerfish("chat", stdin=b"one\n").stdout == "one \n"
