"""`archerfish generate`: where prompts come from, and what is written for them."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from archerfish.cli import answers
from archerfish.cli.sampling_options import sampling_params
from archerfish.request import SamplingParams
from tests.cli.running import MODEL, RANDOM_LLAMA, archerfish, assert_refused

SHORT = (*MODEL, "--max-tokens", "6", "--temperature", "0", "--ignore-eos")


def records(*arguments: str, stdin: bytes = b"") -> list[dict[str, Any]]:
    result = archerfish("generate", *arguments, *SHORT, "--json", stdin=stdin)
    assert result.exit_code == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_one_prompt_is_answered_with_nothing_but_the_answer() -> None:
    result = archerfish("generate", "Once upon a time", *SHORT)
    [record] = records("Once upon a time")
    assert (result.exit_code, result.stdout) == (0, record["outputs"][0]["text"] + "\n")


def test_json_has_everything() -> None:
    [record] = records("Once upon a time", "--logprobs", "2", "--prompt-logprobs", "1", "--n", "2")
    assert set(record) == {
        "prompt", "prompt_token_ids", "outputs", "num_cached_tokens", "metrics", "prompt_logprobs",
    }  # fmt: skip
    assert record["prompt"] == "Once upon a time"
    assert set(record["metrics"]) == {"ttft", "tpot", "total", "queue_time"}
    assert all(value >= 0 for value in record["metrics"].values())
    assert record["prompt_logprobs"][0] is None
    assert len(record["prompt_logprobs"]) == len(record["prompt_token_ids"])
    first, second = record["outputs"]
    assert first["token_ids"] == second["token_ids"] and len(first["token_ids"]) == 6
    assert (first["finish_reason"], first["stop_reason"], first["index"], second["index"]) == ("length", None, 0, 1)
    likeliest = first["logprobs"][0][str(first["token_ids"][0])]
    assert likeliest["rank"] == 1 and likeliest["logprob"] < 0 and "decoded_token" in likeliest


def test_several_prompts_are_each_under_their_own_title() -> None:
    alone = [archerfish("generate", text, *SHORT).stdout for text in ("The sea", "A " + "long " * 20)]
    together = archerfish("generate", "The sea", "A " + "long " * 20, *SHORT)
    titles = ["==> The sea <==\n", "==> A " + "long " * 11 + "... <==\n"]
    assert together.stdout == titles[0] + alone[0] + "\n" + titles[1] + alone[1]


def test_several_answers_are_counted() -> None:
    result = archerfish("generate", "The sea", *SHORT, "--n", "2")
    assert result.stdout.startswith("==> The sea (1 of 2) <==\n") and "==> The sea (2 of 2) <==\n" in result.stdout


@pytest.mark.parametrize("arguments", [(), ("-",)])
def test_standard_input_is_one_prompt(arguments: tuple[str, ...]) -> None:
    [record] = records(*arguments, stdin="Zwei\nZeilen mit ä\n".encode())
    assert record["prompt"] == "Zwei\nZeilen mit ä"


def test_a_file_has_a_prompt_on_each_line(tmp_path: Path) -> None:
    file = tmp_path / "prompts.txt"
    file.write_bytes("\ufeffThe sea\r\n\n  A\u2028river \n".encode())
    assert [record["prompt"] for record in records("--file", str(file))] == ["The sea", "  A\u2028river "]


def test_a_file_of_json_lines_has_texts_and_token_ids(tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "The\\nsea"}\n\n{"prompt": [5, 6]}\n')
    first, second = records("--file", str(file))
    assert first["prompt"] == "The\nsea"
    assert (second["prompt"], second["prompt_token_ids"]) == (None, [5, 6])


def test_a_file_may_be_standard_input() -> None:
    assert [record["prompt"] for record in records("--file", "-", stdin=b"one\ntwo\n")] == ["one", "two"]


def test_all_sources_together_keep_their_order(tmp_path: Path) -> None:
    (tmp_path / "prompts.txt").write_text("from file")
    found = records("from argument", "--token-ids", "7,8", "--token-ids", "9", "--file", str(tmp_path / "prompts.txt"))
    assert [record["prompt"] or record["prompt_token_ids"] for record in found] == [
        "from argument", "from file", [7, 8], [9],
    ]  # fmt: skip


def test_without_a_tokenizer_answers_are_token_ids() -> None:
    result = archerfish("generate", "--token-ids", "1, 2,3", *SHORT, "--skip-tokenizer-init")
    [record] = records("--token-ids", "1,2,3")
    assert result.stdout == ",".join(map(str, record["outputs"][0]["token_ids"])) + "\n"
    several = archerfish("generate", "--token-ids", "1,2,3", "--token-ids", "4", *SHORT, "--skip-tokenizer-init")
    assert several.stdout.startswith("==> 1,2,3 <==\n" + result.stdout)


def test_settings_may_come_from_file_and_environment(tmp_path: Path) -> None:
    (tmp_path / "engine.toml").write_text(f'model = "{RANDOM_LLAMA}"\nload-format = "dummy"\nthreads = 1\n')
    environ = {"ARCHERFISH_MAX_NUM_SEQS": "4"}
    arguments = ("generate", "The sea", "--config", str(tmp_path / "engine.toml"), "--max-tokens", "6")
    result = archerfish(*arguments, "--temperature", "0", "--ignore-eos", environ=environ)
    assert result.stdout == archerfish("generate", "The sea", *SHORT).stdout


@pytest.mark.parametrize(
    ("arguments", "stdin", "says"),
    [
        ((), b"", "standard input has no prompt"),
        ((), b"\n", "standard input has no prompt"),
        ((), b"ab\xff", "standard input is not UTF-8 text (byte 0xff at offset 2)"),
        (("x", ""), b"", "prompt 2 is empty"),
        (("\udcff",), b"", "prompt 1 is not UTF-8 text (at character 0)"),
        (("--token-ids", "1,two"), b"", "--token-ids '1,two': write whole numbers"),
        (("--token-ids", ","), b"", "--token-ids ',': write whole numbers"),
        (("--file", "missing.txt"), b"", "cannot read missing.txt: No such file"),
        (("--file", "-"), b"\n", "standard input has no prompt"),
        (("x", "--logprobs", "1"), b"", "shown only with --json"),
    ],
)
def test_a_prompt_that_is_none_is_refused_before_a_model_is_loaded(
    arguments: tuple[str, ...], stdin: bytes, says: str
) -> None:
    assert_refused(archerfish("generate", *arguments, "--model", "/no/such/directory", stdin=stdin), says)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b'{"prompt": "a"}\n{', "line 2 of"),
        (b'["a"]', "has no prompt"),
        (b'{"text": "a"}', "has no prompt"),
        (b'{"prompt": ""}', "non-empty"),
        (b'{"prompt": 5}', "must be a non-empty string or list"),
        (b'{"prompt": "a", "max_tokens": 5}', "unknown field 'max_tokens'"),
        (b'{"prompt": "\xff"}', "is not UTF-8 text"),
        (b"\n", "has no prompts"),
    ],
)
def test_a_bad_line_of_a_file_is_refused(tmp_path: Path, content: bytes, says: str) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_bytes(content)
    assert_refused(archerfish("generate", "--file", str(file), "--model", "/no/such/directory"), says)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--token-ids", "1,100000"), "prompt = 100000 is not valid"),
        (("x", "--allowed-token-ids", "100000"), "allowed_token_ids"),
        (("x" * 40, "--max-model-len", "16"), "--max-model-len"),
        (("x", "--skip-tokenizer-init"), "needs a tokenizer"),
    ],
)
def test_a_request_that_cannot_be_served_is_refused(arguments: tuple[str, ...], says: str) -> None:
    result = archerfish("generate", *arguments, *MODEL)
    assert result.exit_code == 2
    assert says in result.stderr.splitlines()[-1] and result.stderr.splitlines()[-1].startswith("error: ")


def test_an_answer_that_fails_ends_with_code_1() -> None:
    # The only allowed token may not be drawn before min_tokens are written.
    impossible = ("--allowed-token-ids", "5", "--stop-token-ids", "5", "--min-tokens", "2")
    streamed = archerfish("generate", "x", *MODEL, *impossible)
    assert streamed.exit_code == 1 and "error: the answer could not be completed" in streamed.stderr
    result = archerfish("generate", "x", *MODEL, *impossible, "--json")
    [answer] = json.loads(result.stdout)["outputs"]
    assert (result.exit_code, answer["finish_reason"]) == (1, "error")
    assert answer["error"] in result.stderr


def test_given_parameters_are_laid_over_the_recommended_ones() -> None:
    recommended = {"temperature": 0.5, "top_k": 7, "max_tokens": 16}
    assert sampling_params(recommended, {"top_k": 3}) == SamplingParams(temperature=0.5, top_k=3, max_tokens=16)
    assert sampling_params({}, {}).max_tokens == 128
    assert sampling_params({}, {"max_tokens": 16}).max_tokens == 16
    assert sampling_params({}, {"max_tokens": None}).max_tokens is None


def test_control_characters_stay_off_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answers.write("a\x1b[2Jb\n")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    answers.write("a\x1b[2Jb\té\n")
    assert capsys.readouterr().out == "a\x1b[2Jb\na\\x1b[2Jb\té\n"


FORMED = ("--model", "minnow", "--threads", "1", "--max-num-seqs", "2", "--temperature", "1.5", "--max-tokens", "60")
CITY = {"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}}, "required": ["city"]}


@pytest.mark.parametrize(
    ("flags", "content", "matches"),
    [
        (("--regex", "[0-9]{4}-[0-9]{2}"), None, r"\d{4}-\d{2}"),
        (("--choice", "red", "--choice", "green"), None, "red|green"),
        (("--json-schema",), json.dumps({**CITY, "additionalProperties": False}), r'\{"city": ?"(Rome|Oslo)"\}'),
        (("--grammar",), 'start: "x" NUM "y"\nNUM: /[0-9]{2,3}/', r"x\d{2,3}y"),
        (("--grammar",), 'root ::= "yes" | "no"', "yes|no"),
        (("--json-object", "--max-tokens", "4"), None, r"\{.*"),
    ],
)
def test_an_answer_has_the_requested_format(
    tmp_path: Path, flags: tuple[str, ...], content: str | None, matches: str
) -> None:
    if content is not None:
        (tmp_path / "form").write_text(content)
        flags = (*flags, str(tmp_path / "form"))
    result = archerfish("generate", "A", *FORMED, *flags)
    assert result.exit_code == 0, result.stderr
    assert re.fullmatch(matches, result.stdout.removesuffix("\n"), re.DOTALL), result.stdout


@pytest.mark.parametrize(
    ("flags", "content", "says"),
    [
        (("--regex", "a", "--choice", "b"), None, "--regex and --choice exclude each other"),
        (("--json-schema",), '{"type": "strin"}', "Invalid type: strin"),
        (("--json-schema",), "{", "--json-schema: "),
        (("--json-schema",), b"\xff", "is not UTF-8"),
        (("--grammar",), " ", "is empty"),
        (("--grammar", "nowhere"), None, "--grammar: cannot read nowhere"),
    ],
)
def test_a_form_that_cannot_be_is_refused(
    tmp_path: Path, flags: tuple[str, ...], content: str | bytes | None, says: str
) -> None:
    if content is not None:
        (tmp_path / "form").write_bytes(content if isinstance(content, bytes) else content.encode())
        flags = (*flags, str(tmp_path / "form"))
    assert_refused(archerfish("generate", "A", *MODEL, *flags), says)


def test_a_mistake_in_a_pattern_is_marked_below_it() -> None:
    result = archerfish("generate", "A", *MODEL, "--regex", "ab(c")
    assert result.exit_code == 2 and result.stdout == ""
    lines = result.stderr.splitlines()
    assert lines[-3] == "error: regex = '...' is not valid: unclosed group at character 3"
    assert lines[-2:] == ["    ab(c", "      ^"]
