"""The program itself: what it lists, what it imports, how errors end it."""

import json
import subprocess
import sys
from dataclasses import fields
from importlib import import_module

import click
import pytest

from archerfish import __version__
from archerfish.cli import main
from archerfish.config.settings import EngineConfig
from archerfish.errors import DoesNotFit, StepFailed, UserError
from archerfish.request import SamplingParams
from tests.cli.running import MODEL, archerfish, assert_refused

_HEAVY = ("torch", "numpy", "rich", "jinja2", "tokenizers", "huggingface_hub", "safetensors", "archerfish.engine")


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["--version"],
        [],
        ["generate", "--help"],
        ["chat", "-h"],
        ["models", "-h"],
        ["bench", "ladder", "-h"],
    ],
)
def test_help_and_version_import_nothing_heavy(arguments: list[str]) -> None:
    script = (
        "import json, sys; from archerfish.cli.main import run; code = run(sys.argv[1:]); "
        "print(json.dumps([code, sorted(sys.modules)]), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, check=True)
    exit_code, modules = json.loads(done.stderr)
    assert exit_code == 0
    assert not set(_HEAVY) & set(modules)


def test_version() -> None:
    assert archerfish("--version") == (0, f"archerfish {__version__}\n", "")


def test_help_lists_every_command_in_its_own_words() -> None:
    text = archerfish("--help").stdout
    for name, entry in main._COMMANDS.items():
        command = import_module(f"archerfish.cli.{entry.module}").command
        assert (command.name, command.help.partition("\n")[0]) == (name, entry.summary)
        assert f"{name}  " in text and entry.summary in text
    assert archerfish().stdout == text


def _options(name: str) -> dict[str, click.Option]:
    command = import_module(f"archerfish.cli.{name}").command
    return {flag: option for option in command.params if isinstance(option, click.Option) for flag in option.opts}


@pytest.mark.parametrize("command", ["generate", "chat"])
def test_every_engine_setting_is_an_option_with_help(command: str) -> None:
    options = _options(command)
    for field in fields(EngineConfig):
        option = options["--" + field.name.replace("_", "-")]
        assert option.help
        assert not option.help.endswith("]") or f"[default: {_as_shown(field.default)}]" in option.help
    assert "--config" in options


def test_every_sampling_parameter_is_an_option() -> None:
    names = {field.name for field in fields(SamplingParams)} - {
        *("structured", "structured_outputs", "guided_decoding", "speculation", "bad_words_token_ids"),
        *("prompt_embedding", "prompt_states", "detokenize", "output_kind"),
    }  # Too much for a flag, or nothing for a terminal.
    wanted = {"--" + name.replace("_", "-") for name in names} | {"--sampling-seed"}
    wanted |= {"--speculation-method", "--num-speculative-tokens", "--verification"}
    assert wanted <= set(_options("generate"))
    assert wanted - set(_options("chat")) == {"--n", "--best-of", "--logprobs", "--prompt-logprobs"}


def _as_shown(default: object) -> str:
    if isinstance(default, bool):
        return "on" if default else "off"
    return f"{default:g}" if isinstance(default, float) else str(default)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("generat",), f"there is no command 'generat'; choose from {', '.join(main._COMMANDS)}"),
        (("--nope",), "--nope"),
        (("generate", "--max-model-length", "1"), "--max-model-len"),
        (("generate", "x", "--model"), "--model"),
        (("generate", "x", "--dtype", "int3"), "'bfloat16'"),
        (("generate", "x", "--max-model-len", "12x"), "--max-model-len: '12x' is not a whole number"),
        (("generate", "x", "--temperature", "hot"), "--temperature: 'hot' is not a number"),
        (("generate", "x", "--temperature", "-1"), "--temperature -1.0 is not valid"),
        (("generate", "x", "--top-p", "0"), "--top-p 0.0 is not valid"),
        (("generate", "x", "--sampling-seed", "-2"), "--sampling-seed -2 is not valid"),
        (("generate", "x", "--num-speculative-tokens", "99"), "--num-speculative-tokens 99 is not valid"),
        (("generate", "x", "--model", "no/such/m.GGUF"), "GGUF files are not read"),
        (("generate", "x", "--sampling-seed", "x"), "--sampling-seed: 'x' is not a whole number"),
        (("generate", "x", "--logit-bias", "{"), "--logit-bias: '{' is not JSON"),
        (("generate", "x", "--config", "missing.toml"), "missing.toml: No such file"),
        (("generate", "x", "--model", "/no/such/directory"), "there is no directory /no/such/directory"),
        (("generate", "x", "--model", "no-such-model"), "no-such-model"),
        (("generate", "x", *MODEL, "--max-model-len", "1"), "--max-model-len 1: it must be at least 2"),
    ],
)
def test_what_a_user_can_fix_is_one_line_and_code_2(arguments: tuple[str, ...], says: str) -> None:
    assert_refused(archerfish(*arguments), says)


@pytest.mark.usefixtures("box")
@pytest.mark.parametrize("command", ["generate", "chat"])
def test_a_package_without_its_models_says_so(command: str) -> None:
    result = archerfish(command, *(["x"] if command == "generate" else []))
    assert_refused(result, "no model was named, and the default, perch, is missing from this installation")


def test_an_unknown_variable_is_refused() -> None:
    result = archerfish("generate", "x", environ={"ARCHERFISH_DTYPES": "float32"})
    assert_refused(result, "ARCHERFISH_DTYPES is not a setting; did you mean ARCHERFISH_DTYPE?")


def _raising(error: BaseException) -> click.Command:
    def callback() -> None:
        raise error

    return click.Command("broken", callback=callback)


@pytest.mark.parametrize(
    ("error", "exit_code", "stderr"),
    [
        (UserError("bad\nluck"), 2, "error: bad luck\n"),
        (DoesNotFit("too big\n  weights 1 GiB"), 2, "error: too big\n  weights 1 GiB\n"),
        (StepFailed("a step failed"), 1, "error: a step failed\n"),
        (KeyboardInterrupt(), 130, "\n"),
    ],
)
def test_each_kind_of_error_has_its_ending(
    monkeypatch: pytest.MonkeyPatch, error: BaseException, exit_code: int, stderr: str
) -> None:
    monkeypatch.setattr(main.program, "get_command", lambda *_: _raising(error))
    assert archerfish("doctor") == (exit_code, "", stderr)


def test_a_memory_table_is_printed_whole() -> None:
    result = archerfish("generate", "x", *MODEL, "--kv-cache-memory-bytes", "10")
    assert result.exit_code == 2
    assert result.stderr.startswith("error: the model does not fit in memory.\n  weights ")
    assert "--kv-cache-memory-bytes 12582912" in result.stderr.splitlines()[-1]


def test_the_installed_program_answers_and_survives_a_closed_pipe() -> None:
    script = "from archerfish.cli.main import main; main()"
    arguments = ["generate", "Once", *MODEL, "--max-tokens", "64", "--ignore-eos"]
    with subprocess.Popen(
        [sys.executable, "-c", script, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.read(1)
        process.stdout.close()
        stderr = process.stderr.read().decode()
    assert process.returncode == 1
    assert "random weights" in stderr and "Traceback" not in stderr and "BrokenPipe" not in stderr
