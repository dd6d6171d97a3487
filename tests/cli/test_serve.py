"""What `archerfish serve` makes of its arguments."""

from pathlib import Path
from typing import Any

import pytest

from archerfish.config.settings import EngineConfig, ServerConfig
from tests.cli.running import archerfish, assert_refused


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[tuple[EngineConfig, ServerConfig]]:
    """What would have been served."""
    calls: list[tuple[EngineConfig, ServerConfig]] = []
    monkeypatch.setattr("archerfish.server.serve.serve", lambda *given: calls.append(given))
    return calls


@pytest.mark.parametrize(
    ("arguments", "model", "names"),
    [
        (["--served-model-name", "a", "b"], None, ("a", "b")),
        (["--served-model-name", "a", "--served-model-name", "b"], None, ("a", "b")),
        (["some/model", "--served-model-name", "a", "b", "--port", "0"], "some/model", ("a", "b")),
        (["--served-model-name=a", "some/model"], "some/model", ("a",)),
        (["--served-model-name", "a", "--", "some/model"], "some/model", ("a",)),
        (["some/model"], "some/model", ()),
    ],
)
def test_a_model_has_as_many_names_as_are_given(
    served: list[Any], arguments: list[str], model: str | None, names: tuple[str, ...]
) -> None:
    assert archerfish("serve", *arguments).exit_code == 0
    [(engine, server)] = served
    assert (engine.model, server.served_model_name) == (model, names)


@pytest.mark.parametrize(
    "arguments",
    [
        ["some/model", "--api-key", "sk-a", "sk-b"],
        ["some/model", "--api-key", "sk-a", "sk-b", "--port", "0"],
        ["--api-key", "sk-a", "--api-key", "sk-b", "--", "some/model"],
        ["--api-key=sk-a", "--api-key=sk-b", "some/model"],
    ],
    ids=" ".join,
)
def test_keys_may_be_given_several_times(served: list[Any], arguments: list[str]) -> None:
    assert archerfish("serve", *arguments).exit_code == 0
    [(engine, server)] = served
    assert (engine.model, server.api_key) == ("some/model", ("sk-a", "sk-b"))


@pytest.mark.parametrize("flag", ["--served-model-name", "--api-key"])
@pytest.mark.parametrize("last", ["some/model", "perch", "."])
def test_a_model_taken_for_one_more_value_is_found_out(served: list[Any], flag: str, last: str, tmp_path: Path) -> None:
    last = str(tmp_path) if last == "." else last
    result = archerfish("serve", flag, "a", last)
    assert_refused(result, f"{flag} takes all values that follow")
    assert "put the model before the option" in result.stderr
    assert (last in result.stderr) == (flag != "--api-key"), "a key is a secret"
    assert not served


VLLM = (
    *("--enable-auto-tool-choice", "--reasoning-parser", "qwen3", "--gpu-memory-utilization", "0.5"),
    *("--max-model-len", "512", "--tensor-parallel-size", "1", "--trust-remote-code", "--dtype", "auto"),
    *("--enforce-eager", "--disable-log-requests", "--chat-template-content-format", "auto", "--max-log-len", "10"),
    *("--uvicorn-log-level", "warning", "--disable-uvicorn-access-log", "--enable-prompt-tokens-details"),
    *("--no-return-tokens-as-token-ids", "--enable-reasoning", "--no-use-tqdm-on-load"),
)


@pytest.mark.parametrize("parser", ["hermes", "mistral", "llama3_json", "llama4_json", "qwen25"])
def test_flags_of_vllm_start_it(served: list[Any], parser: str) -> None:
    result = archerfish("serve", "perch", "--tool-call-parser", parser, *VLLM)
    assert result.exit_code == 0, result.stderr
    [(engine, server)] = served
    assert (engine.max_model_len, engine.gpu_memory_utilization, engine.kernels) == (512, 0.5, "auto")
    assert (server.tool_call_format, server.reasoning_parser) == (parser, "qwen3")


def test_a_tool_parser_is_named_once_and_known() -> None:
    both = archerfish("serve", "--tool-call-parser", "hermes", "--tool-call-format", "llama3")
    assert_refused(both, "--tool-call-parser hermes: --tool-call-format is the same and was given, too; leave one out")
    unknown = archerfish("serve", "--tool-call-parser", "pythonic", "--port", "0")
    assert_refused(unknown, "there is no tool format 'pythonic': choose one of perch, hermes")
