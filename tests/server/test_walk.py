"""The walk of one streamed chat: through how many modules and wrappers it goes, in all processes of the service.

The numbers may fall and must not rise. The aim is 60 modules and 12 wrappers; docs/architecture.md draws the walk.
"""

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.server.recording.sitecustomize import MARKER
from tests.server.running import RunningService, running_service

RECORDER = Path(__file__).parent / "recording"
BODY = {"messages": [{"role": "user", "content": f"Tell me of {MARKER}."}], "max_tokens": 20, "stream": True}
PATIENCE = 30.0

MAX_API_MODULES = 42
"""Modules of the API process and its preprocessing workers: 39, and more where the snapshot of each second falls in."""
MAX_ENGINE_MODULES = 50
MAX_API_WRAPPERS = 9
MAX_ENGINE_WRAPPERS = 11
"""Drafts and their verification among them: whether a step has drafts depends on how fast it is."""


@pytest.fixture(scope="module")
def walk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, dict[str, set[str]]]]:
    """What was recorded of one request, by process."""
    directory = tmp_path_factory.mktemp("walk")
    paths = os.pathsep.join([str(RECORDER), os.environ.get("PYTHONPATH", "")])
    with running_service(environment={"WALK": str(directory), "PYTHONPATH": paths}) as service:
        post(service)  # Nothing is made for the first time while it is recorded.
        post(service)
        processes = {
            "api": [service.process.pid, *service.children("preprocessing.worker")],
            "engine": [service.engine],
        }
        everyone = [pid for pids in processes.values() for pid in pids]
        for pid in everyone:
            os.kill(pid, signal.SIGUSR1)
        time.sleep(0.5)  # Signals are handled between two instructions of Python.
        assert "data: [DONE]" in post(service)
        for pid in everyone:
            os.kill(pid, signal.SIGUSR2)
        recorded = {pid: recording(directory / f"{pid}.json") for pid in everyone}
    yield {
        name: {kind: {one for pid in pids for one in recorded[pid][kind]} for kind in ("modules", "wrappers")}
        for name, pids in processes.items()
    }


def post(service: RunningService) -> str:
    return httpx.post(f"{service.url}/v1/chat/completions", json=BODY, timeout=PATIENCE).text


def recording(path: Path) -> Any:
    end = time.monotonic() + PATIENCE
    while not path.exists():
        assert time.monotonic() < end, f"no {path}"
        time.sleep(0.05)
    return json.loads(path.read_text())


def test_the_walk_gets_no_longer(walk: dict[str, dict[str, set[str]]]) -> None:
    api, engine = walk["api"]["modules"], walk["engine"]["modules"]
    assert {"api/chat.py", "engine/input_processor.py", "engine/outputs.py", "server/replies.py"} <= api
    assert {"engine/process.py", "scheduling/scheduler.py"} <= engine
    assert len(api) <= MAX_API_MODULES, sorted(api)
    assert len(engine) <= MAX_ENGINE_MODULES, sorted(engine)


def test_a_request_is_wrapped_no_more_often(walk: dict[str, dict[str, set[str]]]) -> None:
    api, engine = walk["api"]["wrappers"], walk["engine"]["wrappers"]
    assert {"ChatCall", "EngineInputs", "Request", "RequestStream"} <= api and "Sequence" in engine
    assert len(api) <= MAX_API_WRAPPERS, sorted(api)
    assert len(engine) <= MAX_ENGINE_WRAPPERS, sorted(engine)
