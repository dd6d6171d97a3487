"""`archerfish chat`: turns in, answers out, and what Ctrl-C stops."""

import json
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from archerfish.cli import chat
from archerfish.cli.chat_commands import run_command
from archerfish.cli.chat_input import Typed, read_message
from archerfish.cli.conversation import ChatHistory, ChatModel, Message
from archerfish.engine.outputs import StreamOutput
from archerfish.errors import InvalidParameter, PromptTooLong, RequestError, UserError
from archerfish.request import SamplingParams
from tests.cli.running import MODEL, RANDOM_LLAMA, archerfish, assert_refused

CONTEXT = 40


class Parrot:
    """Answers with what it heard, word by word, and remembers what it was given. A word is a token."""

    def __init__(self) -> None:
        self.heard: list[list[Message]] = []
        self.interrupts_after: int | None = None
        self.finish_reason = "stop"

    def stream_chat(self, messages: Sequence[Message], params: SamplingParams) -> Iterator[StreamOutput]:
        self.heard.append(list(messages))
        words = messages[-1]["content"].split()
        if words == ["refuse"]:
            raise InvalidParameter("messages", "refuse", "it is not wanted")
        for place, word in enumerate(words, 1):
            if place == self.interrupts_after:
                signal.raise_signal(signal.SIGINT)
            yield StreamOutput(0, word + " ", [place], None, self.finish_reason if place == len(words) else None, None)

    def token_ids(self, messages: Sequence[Message]) -> list[int]:
        return [0 for message in messages for _ in message["content"].split()]

    def check_length(self, token_ids: Sequence[int]) -> None:
        if len(token_ids) >= CONTEXT:
            raise PromptTooLong(len(token_ids), CONTEXT)


class Keyboard:
    """Types lines, and presses Ctrl-C where one is None; then there is no more."""

    def __init__(self, lines: Sequence[str | None]) -> None:
        self._lines = list(lines)
        self.prompts: list[str] = []

    def input(self, prompt: str) -> str:
        self.prompts.append(prompt)
        if not self._lines:
            raise EOFError
        line = self._lines.pop(0)
        if line is None:
            raise KeyboardInterrupt
        return line


def talk(conversation: ChatHistory, monkeypatch: pytest.MonkeyPatch, *lines: str | None) -> Keyboard:
    keyboard = Keyboard(lines)
    monkeypatch.setattr("builtins.input", keyboard.input)
    typed = Typed()
    monkeypatch.setattr(typed, "_typed", lambda: "")
    chat._talk(conversation, typed)
    return keyboard


@pytest.fixture
def parrot() -> Parrot:
    return Parrot()


@pytest.fixture
def conversation(parrot: Parrot) -> ChatHistory:
    model = ChatModel(parrot.stream_chat, parrot.token_ids, parrot.check_length, CONTEXT)
    return ChatHistory(model, SamplingParams(max_tokens=5))


def test_a_conversation_remembers_its_turns(parrot: Parrot, conversation: ChatHistory) -> None:
    list(conversation.answer("one two"))
    list(conversation.answer("three"))
    assert [message["content"] for message in parrot.heard[1]] == ["one two", "one two ", "three"]
    assert [message["role"] for message in conversation.messages] == ["user", "assistant", "user", "assistant"]
    conversation.system = "Be brief"
    conversation.reset()
    assert conversation.messages == [{"role": "system", "content": "Be brief"}]


def test_an_answer_cut_short_is_remembered_as_far_as_it_was_written(conversation: ChatHistory) -> None:
    answer = conversation.answer("one two three")
    next(answer)
    answer.close()
    assert conversation.messages[-1] == {"role": "assistant", "content": "one "}


def test_a_refused_turn_leaves_no_trace(conversation: ChatHistory) -> None:
    with pytest.raises(RequestError):
        list(conversation.answer("refuse"))
    assert conversation.messages == []


def test_a_full_context_drops_the_oldest_turns_and_says_so(
    parrot: Parrot, conversation: ChatHistory, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    conversation.system = "Be brief"
    talk(conversation, monkeypatch, "a " * 6, "b " * 6, "c " * 6, "d " * 6, "e " * 15)
    # Two words of instructions, twelve of each turn, and five tokens are left for an answer.
    assert [message["content"].split()[0] for message in parrot.heard[2]] == ["Be", "a", "a", "b", "b", "c"]
    assert [message["content"].split()[0] for message in parrot.heard[3]] == ["Be", "b", "b", "c", "c", "d"]
    assert [message["content"].split()[0] for message in parrot.heard[4]] == ["Be", "d", "d", "e"]
    said = capsys.readouterr().err
    assert "(The context of 40 tokens is full: the oldest turn was dropped.)" in said
    assert "(The context of 40 tokens is full: the oldest 2 turns were dropped.)" in said


def test_a_message_that_alone_is_too_long_is_refused_and_costs_no_turn(conversation: ChatHistory) -> None:
    list(conversation.answer("one two"))
    with pytest.raises(PromptTooLong) as refusal:
        conversation.drop_oldest_turns("word " * CONTEXT)
    assert (refusal.value.length, refusal.value.limit) == (CONTEXT, CONTEXT)
    assert conversation.num_turns == 1
    # One that leaves the answer less than it would have is taken, alone.
    assert conversation.drop_oldest_turns("word " * (CONTEXT - 1)) == 1


def test_an_answer_is_left_a_part_of_the_context_even_without_max_tokens(conversation: ChatHistory) -> None:
    conversation.params = SamplingParams(max_tokens=None)
    list(conversation.answer("word " * 10))
    assert conversation.drop_oldest_turns("word " * 10) == 0
    assert conversation.drop_oldest_turns("word " * 11) == 1


def test_ctrl_c_stops_the_answer_and_nothing_else(
    parrot: Parrot, conversation: ChatHistory, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    parrot.interrupts_after = 2
    before = signal.getsignal(signal.SIGINT)
    talk(conversation, monkeypatch, "one two three four", "five")
    written = capsys.readouterr()
    assert written.out == "one two \nfive \n"
    assert "(2 tokens, TTFT " in written.err and "; stopped)" in written.err
    assert signal.getsignal(signal.SIGINT) is before


def test_ctrl_c_at_the_prompt_clears_the_line_and_ends_the_second_time_in_a_row(
    parrot: Parrot, conversation: ChatHistory, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    keyboard = talk(conversation, monkeypatch, "one", None, "two", "half \\", None, None, "three")
    assert [messages[-1]["content"] for messages in parrot.heard] == ["one", "two"]
    assert keyboard._lines == ["three"]
    assert capsys.readouterr().err.count("Press Ctrl-C again") == 2


def test_ctrl_c_that_clears_text_is_the_first_of_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    keyboard = Keyboard([None] * 5)
    monkeypatch.setattr("builtins.input", keyboard.input)
    typed, counted = Typed(), []
    for text in ("", "text", "more text", "", ""):
        monkeypatch.setattr(typed, "_typed", lambda text=text: text)
        with pytest.raises(KeyboardInterrupt):
            typed("> ")
        counted.append(typed.num_interrupts)
    assert counted == [1, 1, 1, 2, 3]


def test_a_second_ctrl_c_is_not_held_back() -> None:
    with pytest.raises(KeyboardInterrupt), chat._interrupt_flag() as interrupted:
        signal.raise_signal(signal.SIGINT)
        assert interrupted()
        signal.raise_signal(signal.SIGINT)


def test_commands_are_obeyed_and_unknown_ones_named(
    parrot: Parrot, conversation: ChatHistory, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = ["one", "", "/reset", "/system Be brief", "two", "/system", "/nope", "refuse", " /one", "/exit", "three"]
    talk(conversation, monkeypatch, *lines)
    written = capsys.readouterr()
    assert written.out == "one \ntwo \n/one \n"
    assert parrot.heard[1] == [{"role": "system", "content": "Be brief"}, {"role": "user", "content": "two"}]
    assert parrot.heard[2][0]["role"] == "user"
    assert "error: there is no command /nope; choose from /help, " in written.err
    assert "error: messages = 'refuse' is not valid" in written.err


def test_help_names_every_command(conversation: ChatHistory) -> None:
    lines = run_command(conversation, "/help").splitlines()
    named = ["/help", "/params", "/system", "/save", "/load", "/reset", "/exit"]
    assert [line.split()[0] for line in lines[:7]] == named
    assert max(map(len, lines)) <= 80


def test_params_are_shown_and_set(conversation: ChatHistory) -> None:
    before = "max_tokens=5  temperature=1.0  top_k=0  top_p=1.0  seed=none"
    assert run_command(conversation, "/params") == before
    run_command(conversation, "/params temperature=0.5 max_tokens=none seed=7 stop='a b,c' ignore_eos=true")
    expected = SamplingParams(temperature=0.5, max_tokens=None, seed=7, stop=("a b", "c"), ignore_eos=True)
    assert conversation.params == expected
    # What is shown can be given back.
    run_command(conversation, "/params logit_bias='{\"3\": -1}'")
    shown = run_command(conversation, "/params")
    run_command(conversation, f"/params {shown}")
    assert run_command(conversation, "/params") == shown


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("/params temperature", "write name=value"),
        ("/params heat=1", "there is no parameter heat; choose from "),
        ("/params n=2", "there is no parameter n"),
        ("/params temperature=-1", "temperature = -1.0 is not valid"),
        ("/params max_tokens=many", "max_tokens: "),
        ("/params stop='", "quotes come in pairs"),
        ("/reset all", "'all'"),
        ("/save", "/save FILE"),
        ("/load", "/load FILE"),
        ("/save /dev/null", "exists and is not a saved conversation"),
        ("/load /dev/zero", "is not a file"),
        ("/load /no/such/file", "No such file"),
        ("/save /no/such/file", "No such file"),
        ("/load a\0b", "null"),
        ("/load ~nobody-of-this-name/file", "/load ~nobody-of-this-name/file"),
    ],
)
def test_a_command_that_cannot_be_obeyed_says_why_and_changes_nothing(
    conversation: ChatHistory, line: str, says: str
) -> None:
    list(conversation.answer("one"))
    before = (conversation.messages, conversation.params)
    with pytest.raises(UserError) as refusal:
        run_command(conversation, line)
    assert says in str(refusal.value)
    assert (conversation.messages, conversation.params) == before


def test_a_conversation_is_saved_and_goes_on(conversation: ChatHistory, tmp_path: Path) -> None:
    conversation.system = "Be brief"
    list(conversation.answer("grüße"))
    before, file = conversation.messages, tmp_path / "talk of today.json"
    assert run_command(conversation, f"/save {file}") == f"(1 turn saved to {file}.)"
    assert run_command(conversation, f"/save {file}")  # Over itself.
    run_command(conversation, "/reset")
    run_command(conversation, "/system")
    assert run_command(conversation, f"/load {file}") == f"(1 turn loaded from {file}.)"
    assert conversation.messages == before


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("no JSON", "it is not JSON"),
        ("[" * 100_000, "it is not JSON"),
        ("[]", "an object with a list of messages"),
        ('{"messages": [1]}', "message 1 must be"),
        ('{"messages": [{"role": "user", "content": ["text"]}]}', "message 1 must be"),
        ('{"messages": [{"role": "user", "content": "a"}]}', "alternate"),
        ('{"messages": [{"role": "assistant", "content": "a"}, {"role": "user", "content": "a"}]}', "alternate"),
    ],
)
def test_what_is_no_conversation_is_not_loaded_and_not_overwritten(
    conversation: ChatHistory, tmp_path: Path, content: str, says: str
) -> None:
    file = tmp_path / "file.json"
    file.write_text(content)
    for command in ("/load", "/save"):
        with pytest.raises(RequestError) as refusal:
            run_command(conversation, f"{command} {file}")
        assert (says if command == "/load" else "choose another file") in str(refusal.value)
    assert file.read_text() == content


def test_an_answer_cut_off_says_so(
    parrot: Parrot, conversation: ChatHistory, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    parrot.finish_reason = "length"
    talk(conversation, monkeypatch, "one", "one two three four five")
    said = capsys.readouterr().err
    assert "cut off at the end of the context" in said and "cut off at --max-tokens" in said


@pytest.mark.parametrize(
    ("lines", "messages"),
    [
        (["one", "two"], ["one", "two"]),
        (["one\\", "two\\", "three", "four"], ["one\ntwo\nthree", "four"]),
        (['"""one', "", 'two"""', "three"], ["one\n\ntwo", "three"]),
        (['"""', "one\\", "  two", '"""', "three"], ["one\\\n  two", "three"]),
        (['"""one"""', "two"], ["one", "two"]),
        (['"""one', "two"], ["one\ntwo"]),
        (["one\\"], ["one"]),
    ],
)
def test_messages_of_several_lines(lines: list[str], messages: list[str]) -> None:
    left = iter(lines)
    read = []
    while (message := read_message(lambda _: next(left, None))) is not None:
        read.append(message)
    assert read == messages


def test_typed_lines_end_with_the_input(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    keyboard = Keyboard(["one \\", "two"])
    monkeypatch.setattr("builtins.input", keyboard.input)
    typed = Typed()
    assert [read_message(typed), read_message(typed)] == ["one \ntwo", None]
    assert keyboard.prompts == ["", "", ""]
    written = capsys.readouterr()
    assert (written.out, written.err) == ("", "> ... > \n")


def test_a_real_model_answers_piped_turns() -> None:
    arguments = ("chat", *MODEL, "--max-tokens", "4", "--temperature", "0", "--ignore-eos", "--system", "Be brief")
    result = archerfish(*arguments, stdin="Hello\n\n/reset\nHello\r\nJa, grüße\n".encode())
    assert result.exit_code == 0, result.stderr
    first, second, third = result.stdout.removesuffix("\n").split("\n")
    assert first == second and third
    assert result.stderr.count("; cut off at --max-tokens") == 3


def test_a_real_model_goes_on_when_its_context_is_full() -> None:
    arguments = ("chat", *MODEL, "--max-model-len", "64", "--max-tokens", "16", "--ignore-eos")
    result = archerfish(*arguments, stdin=b"Hello\n" * 4 + b"/system " + b"x" * 1000 + b"\nHello\n")
    assert result.stderr.count("The context of 64 tokens is full") >= 1
    assert result.stderr.count("; cut off at --max-tokens") == 4
    assert result.exit_code == 2
    assert result.stderr.splitlines()[-1].startswith("error: the prompt has ")


def test_bad_turns_from_a_pipe_are_refused() -> None:
    assert_refused(archerfish("chat", *MODEL, stdin=b"/nope\nHello\n"), "there is no command /nope")
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
        assembly = SimpleNamespace(processor=SimpleNamespace(max_model_len=CONTEXT), recommended={})

        def __enter__(self) -> "Picky":
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def default_sampling_params(self) -> SamplingParams:
            return SamplingParams()

    def chat_text(messages: Sequence[Message]) -> str:
        if messages[0]["content"] == "Hello":
            raise InvalidParameter("messages", "Hello", "start with a system message")
        return messages[0]["content"]

    picky = Picky()
    picky.assembly.processor.chat_text = chat_text
    picky.assembly.processor.token_ids = lambda text, **_: [0 for _ in text.split()]
    picky.assembly.processor.check_length = picky.check_length
    monkeypatch.setattr(chat, "open_model", lambda _: picky)
    assert archerfish("chat", stdin=b"one\n").stdout == "one \n"
