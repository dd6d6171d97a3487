"""What a body leaves behind while its request is open is bounded."""

import json
from pathlib import Path
from typing import Any

import pytest

from archerfish.api.errors import ErrorReply
from archerfish.api.model import ServedModel
from archerfish.box import models_in_box
from archerfish.server.preprocessing.protocol import PreprocessingJob, load_model
from tests.server.preprocessing.test_pool import LIMITS, spec_of


@pytest.fixture(scope="module")
def model() -> ServedModel:
    return load_model(spec_of(Path(models_in_box()["perch"])), lambda: 7.0)


def with_tool(size: int) -> dict[str, Any]:
    """A body that is repeated in its response, with so many characters that the model never sees."""
    tool = {"type": "function", "name": "a", "description": "y" * size, "parameters": None}
    return {"input": "a", "tool_choice": "none", "tools": [tool]}


def test_fields_that_a_response_repeats_are_bounded(model: ServedModel) -> None:
    def run(size: int) -> object:
        return PreprocessingJob("/v1/responses", json.dumps(with_tool(size)).encode()).run(model, LIMITS)

    assert not isinstance(run(1_000_000), ErrorReply)
    refusal = run(1_100_000)
    assert isinstance(refusal, ErrorReply) and refusal.code == "too_large" and "1,048,576" in refusal.message


def test_prompts_do_not_count(model: ServedModel) -> None:
    body = json.dumps({"prompt": ["a" * 900] * 1500}).encode()
    outcome = PreprocessingJob("/v1/completions", body).run(model, LIMITS)
    assert len(body) > 1 << 20 and not isinstance(outcome, ErrorReply)
    assert len(outcome.inputs.prompts) == 1500
