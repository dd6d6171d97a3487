"""A run that was saved is the same when it is read again; what is no run is refused."""

import json
from pathlib import Path

import pytest

from archerfish.bench.serve.records import load_run, save_run
from archerfish.errors import ConfigError
from archerfish.request import FinishReason
from tests.bench.runs import FEW, SATURATED, failed_request, make_request, make_run, make_sample, random_run


def test_what_is_saved_is_what_is_read(tmp_path: Path) -> None:
    run = random_run(num_requests=5, findings=(SATURATED, FEW), samples=(make_sample(0.5),))
    save_run(run, tmp_path / "run.json")
    assert load_run(tmp_path / "run.json") == run
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]
    assert json.loads((tmp_path / "run.json").read_text())["format"] == 2


def test_tokens_that_come_together_are_one_arrival() -> None:
    record = make_request(0, 1.0, 0.5, [0.0, 0.25, 0.0, 0.0, 0.5])
    assert record.token_times == (1.5, 1.5, 1.75, 1.75, 1.75, 2.25)
    assert record.gaps == [0.25, 0.5]
    assert record.timing.tpot == pytest.approx(0.75 / 5)


def test_how_requests_ended() -> None:
    assert make_request(0, 0.0, 0.1, []).outcome is FinishReason.LENGTH
    assert make_request(0, 0.0, 0.1, [], finish_reason="tool_calls").outcome is FinishReason.STOP
    assert failed_request(0, 0.0).outcome is FinishReason.ERROR


def test_the_servers_count_goes_before_ours() -> None:
    assert make_request(0, 0.0, 0.1, [], num_prompt_tokens=7).num_input_tokens == 7
    assert make_request(0, 0.0, 0.1, [], num_prompt_tokens=None).num_input_tokens == 100
    assert failed_request(0, 0.0).num_input_tokens == 0


def test_a_finding_that_is_fatal_makes_a_run_invalid() -> None:
    assert make_run([], findings=(FEW,)).is_valid
    assert not make_run([], findings=(FEW, SATURATED)).is_valid


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"format": 1}', "\x00"])
def test_other_files_are_refused(content: str, tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    path.write_text(content)
    with pytest.raises(ConfigError, match="no result of archerfish bench serve"):
        load_run(path)


def test_places_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read"):
        load_run(tmp_path / "missing.json")
    with pytest.raises(ConfigError, match="cannot be written"):
        save_run(make_run([]), tmp_path / "missing" / "run.json")
