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


def test_keys_may_be_given_several_times(served: list[Any]) -> None:
    archerfish("serve", "--api-key", "sk-a", "--api-key", "sk-b", "some/model")
    [(engine, server)] = served
    assert (engine.model, server.api_key) == ("some/model", ("sk-a", "sk-b"))


@pytest.mark.parametrize("last", ["some/model", "perch", "."])
def test_a_model_taken_for_a_name_is_found_out(served: list[Any], last: str, tmp_path: Path) -> None:
    result = archerfish("serve", "--served-model-name", "a", str(tmp_path) if last == "." else last)
    assert_refused(result, "put it before the option")
    assert not served
