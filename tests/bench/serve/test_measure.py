"""Whole load tests: against our server, one started for the run, and another engine's."""

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import httpx
import pytest

from archerfish.bench.serve import measure
from archerfish.bench.serve.client import BenchClient
from archerfish.bench.serve.connections import ServerAddress
from archerfish.bench.serve.records import load_run
from archerfish.bench.serve.watch import read_metrics, read_settings, sample
from archerfish.errors import ConfigError
from tests.checkpoints import write_checkpoint
from tests.cli.running import archerfish, assert_refused
from tests.server.running import RunningService, running_service

_PATIENCE = 120.0
_TOKENIZER = {"tokenizer_class": "PreTrainedTokenizerFast"}
# A run on a busy machine may rightly be called invalid for its times: the tests look at everything else.
_ENDINGS = (0, 2)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = write_checkpoint(tmp_path_factory.mktemp("model"))
    # Settings that transformers needs, too.
    for name, more in (("config", {"architectures": ["LlamaForCausalLM"]}), ("tokenizer_config", _TOKENIZER)):
        path = directory / f"{name}.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **more}))
    return directory


@pytest.fixture(scope="module")
def service(model: Path) -> Iterator[RunningService]:
    with running_service("--model", str(model), measures_peaks=True) as running:
        yield running


@pytest.mark.parametrize("backend", ["openai", "openai-chat"])
def test_our_server_is_measured(backend: str, service: RunningService, model: Path, tmp_path: Path) -> None:
    ran = archerfish(
        *("bench", "serve", "--url", service.url, "--backend", backend, "--tokenizer", str(model)),
        *("--num-prompts", "6", "--random-input-len", "20", "--random-output-len", "5", "--seed", str(len(backend))),
        *("--goodput", "ttft:60000", "tpot:60000", "--save-result", "--result-dir", str(tmp_path)),
        *("--result-filename", "run.json", "--max-concurrency", "3", "--report", str(tmp_path / "run.html")),
    )
    assert ran.exit_code in _ENDINGS, ran.stderr
    assert "Load test of" in (tmp_path / "run.html").read_text(encoding="utf-8")
    assert "Successful requests:                     6 " in ran.stdout
    assert "Good requests (%):                       100.00" in ran.stdout
    run = load_run(tmp_path / "run.json")
    assert (run.target.is_archerfish, run.target.is_own, run.workload.arrivals) == (True, False, "closed")
    for record in run.requests:
        assert record.succeeded and record.counted_by_server and record.finish_reason == "length"
        assert record.num_output_tokens == len(record.token_times) == 5
        assert record.num_prompt_tokens is not None and record.num_prompt_tokens_requested is not None
        if backend == "openai":
            assert record.num_prompt_tokens == record.num_prompt_tokens_requested
        assert record.server is not None and record.server.ttft is not None
        ttft = record.timing.ttft
        assert ttft is not None and 0 < record.server.ttft < ttft
        assert record.sent <= record.token_times[0] <= record.token_times[-1] <= record.ended
    first, last = run.samples[0], run.samples[-1]
    assert last.num_generated_tokens - first.num_generated_tokens == 30
    assert last.prefill_flops > first.prefill_flops and last.decode_bytes > first.decode_bytes


def test_a_server_of_our_own_is_started_and_stopped(model: Path) -> None:
    ran = archerfish(
        *(
            "bench",
            "serve",
            "--model",
            str(model),
            "--server-args",
            "--threads 1 --peak-flops 1e9 --peak-bandwidth 1e9",
        ),
        *("--num-prompts", "4", "--dataset-name", "box", "--output-len", "6", "--request-rate", "50", "--json"),
    )
    assert ran.exit_code in _ENDINGS, ran.stderr
    found = json.loads(ran.stdout)
    assert found["target"]["is_own"] and found["summary"]["num_succeeded"] == 4
    assert found["summary"]["engine"]["utilization"]["decode_mfu"] > 0
    with pytest.raises(httpx.TransportError):
        httpx.get(found["target"]["url"])


def test_a_server_that_does_not_start_says_why() -> None:
    ran = archerfish("bench", "serve", "--server-args", "--max-num-seqs none-of-these", "--dataset-name", "box")
    assert_refused(ran, "the server did not start: --max-num-seqs")


def test_no_server_at_the_address() -> None:
    ran = archerfish("bench", "serve", "--url", "127.0.0.1:1", "--dataset-name", "box")
    assert_refused(ran, "cannot be reached")


def test_mistakes_are_reported_before_anything_is_sent() -> None:
    url = ("--url", "127.0.0.1:1")
    assert_refused(archerfish("bench", "serve", *url, "--goodput", "tft:3"), "--goodput")
    assert_refused(archerfish("bench", "serve", *url, "--result-dir", "/tmp"), "need --save-result")
    assert_refused(archerfish("bench", "serve", *url, "--save-result", "--result-dir", "/no/such"), "no directory")
    assert_refused(archerfish("bench", "serve", *url, "--num-promts", "3"), "--num-prompts")
    assert_refused(archerfish("bench", "serve", *url, "--dollars-per-hour", "0"), "--dollars-per-hour")


def test_a_run_against_a_full_cache_is_invalid(service: RunningService, model: Path) -> None:
    for _ in range(2):
        ran = archerfish(
            *("bench", "serve", "--url", service.url, "--tokenizer", str(model), "--seed", "77"),
            *("--num-prompts", "3", "--random-input-len", "64", "--random-output-len", "2"),
        )
    assert ran.exit_code == 2
    assert "INVALID: prefix-hits: " in ran.stdout and "Seed:                                    77" in ran.stdout
    assert "leave out --seed" in ran.stderr and "another than 77" in ran.stderr


def test_two_runs_against_one_server_have_prompts_of_their_own(service: RunningService, model: Path) -> None:
    load = ("--url", service.url, "--tokenizer", str(model), "--num-prompts", "3", "--json")
    results = [
        archerfish("bench", "serve", *load, "--random-input-len", "64", "--random-output-len", "2") for _ in range(2)
    ]
    assert [ran.exit_code for ran in results] == [0, 0], results[1].stderr
    seeds = {json.loads(ran.stdout)["workload"]["seed"] for ran in results}
    assert len(seeds) == 2


class LoadingServer:
    """Answers with these statuses, one after the other, and then with the last for ever."""

    def __init__(self, *statuses: int) -> None:
        self.statuses = list(statuses)
        self.paths: list[str] = []

    async def get(self, path: str) -> tuple[int, bytes]:
        self.paths.append(path)
        return (self.statuses.pop(0) if len(self.statuses) > 1 else self.statuses[0]), b"{}"


def test_a_server_that_loads_its_model_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(measure, "_BETWEEN_SCRAPES", 0.0)
    origin, server = ServerAddress.parse("http://localhost:8000"), LoadingServer(503, 503, 200)
    with caplog.at_level("INFO"):
        asyncio.run(measure._wait_until_loaded(cast(BenchClient, server), origin, "/health/ready"))
    assert server.paths == ["/health/ready"] * 3
    assert caplog.messages.count("waiting for http://localhost:8000 to load its model") == 1
    monkeypatch.setattr(measure, "_LONGEST_LOADING", 0.0)
    with pytest.raises(ConfigError, match="still not ready after 0 s"):
        asyncio.run(measure._wait_until_loaded(cast(BenchClient, LoadingServer(503)), origin, "/v1/models"))


def test_metrics_of_our_server_are_understood(service: RunningService) -> None:
    scraped = httpx.get(f"{service.url}/metrics").text
    readings = read_metrics(scraped)
    assert readings is not None
    taken = sample(readings, 1.5)
    assert taken.time == 1.5
    match = re.search(r"^archerfish:engine_steps_total\{.*\} (\S+)$", scraped, re.MULTILINE)
    assert match is not None and taken.num_steps == float(match[1])
    # Every reading must be there under the name that is looked for.
    names = ("num_requests_running", "num_requests_waiting", "batch_occupancy", "kv_cache_usage_perc")
    totals = ("engine_busy_seconds", "computed_tokens", "generation_tokens", "prefix_cache_queries", "num_preemptions")
    assert set(names) | {f"{name}_total" for name in totals} <= readings.keys()
    phases = {f"estimated_{what}_total:{phase}" for what in ("flops", "read_bytes") for phase in ("prefill", "decode")}
    assert phases | {"prefix_cache_hits_total"} <= readings.keys()
    metric_names = ("num_drafts", "num_draft_tokens", "num_accepted_tokens", "seconds", "seconds_saved", "seconds_lost")
    assert {f"spec_decode_{name}_total" for name in metric_names} <= readings.keys()
    assert read_metrics("vllm:num_requests_running 3\n") is None
    settings = read_settings(scraped)
    assert settings is not None and (settings.device, settings.dtype, settings.quantization) == (
        "cpu",
        "float32",
        "none",
    )
    assert settings.weight_bytes > 0 and settings.kv_bytes_per_token > 0
    assert read_settings(scraped.replace("engine_info", "other_info")) is None, "a server that still loads"


def test_accepted_draft_tokens_are_read_by_position() -> None:
    name = "archerfish:spec_decode_num_accepted_tokens_per_pos_total"
    lines = [f'{name}{{model_name="m",position="{position}"}} {9 - position}.0' for position in range(3)]
    readings = read_metrics("\n".join(lines))
    assert readings is not None and sample(readings, 0.0).accepted_per_position == (9, 8, 7)


# -- another engine's -------------------------------------------------------------------------------------------------


@pytest.fixture
def foreign_url(model: Path) -> Iterator[str]:
    """transformers' own server, with the same small model."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [str(Path(sys.executable).with_name("transformers")), "serve", "--host", "127.0.0.1", "--port", str(port)]
    process = subprocess.Popen(
        [*command, "--device", "cpu", str(model)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )
    try:
        url = f"http://127.0.0.1:{port}"
        ends = time.monotonic() + _PATIENCE
        while not _is_up(url):
            assert process.poll() is None and time.monotonic() < ends, "transformers serve did not start"
            time.sleep(0.1)  # Between two looks: it does not announce when it is ready.
        yield url
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


def _is_up(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", timeout=5).status_code == 200
    except httpx.TransportError:
        return False


@pytest.mark.full
def test_a_foreign_server_is_measured(foreign_url: str, model: Path, tmp_path: Path) -> None:
    # With this seed no prompt makes the model end at once.
    shared = ("bench", "serve", "--base-url", foreign_url, "--model", str(model), "--num-prompts", "3", "--seed", "0")
    ran = archerfish(
        *(*shared, "--tokenizer", str(model), "--no-ignore-eos", "--max-concurrency", "1"),
        *("--random-input-len", "20", "--random-output-len", "4"),
        *("--save-result", "--result-dir", str(tmp_path), "--result-filename", "run.json"),
    )
    assert ran.exit_code in _ENDINGS, ran.stderr
    run = load_run(tmp_path / "run.json")
    assert not run.target.is_archerfish and run.samples == ()
    for record in run.requests:
        assert record.succeeded, record.error
        assert record.counted_by_server and 1 <= record.num_output_tokens <= 4
        assert record.num_prompt_tokens is not None and record.num_prompt_tokens >= 19
    # It does not know every field: what it says of that is shown to the user.
    refused = archerfish(*shared, "--ignore-eos", "--random-input-len", "4", "--random-output-len", "2")
    assert refused.exit_code == 2 and "ignore_eos" in refused.stderr
