"""Options that contradict one another are refused before anything is sent; the others make the plan they say."""

from dataclasses import replace
from typing import Any

import pytest

from archerfish.bench.serve.datasets import DatasetOptions, Words, make_samples
from archerfish.bench.serve.load import PlannedLoad
from archerfish.bench.serve.measure import measure_serving, plan_load
from archerfish.bench.serve.options import LoadOptions
from archerfish.bench.serve.records import Workload
from archerfish.errors import ConfigError


def _plan(count: int = 4, dataset: str = "box", **options: Any) -> tuple[PlannedLoad, Workload]:
    chosen = DatasetOptions(dataset_name=dataset)
    return plan_load(LoadOptions(**options), chosen, make_samples(chosen, Words(None), count, 0))


def test_all_at_once_is_a_closed_loop() -> None:
    load, workload = _plan(max_concurrency=2)
    assert load.is_closed and load.max_concurrency == 2 and list(load.times) == [0.0] * 4
    assert (workload.arrivals, workload.request_rate, workload.burstiness) == ("closed", None, None)
    assert not workload.ignore_eos


def test_rates() -> None:
    load, workload = _plan(request_rate="2", arrivals="constant")
    assert list(load.times) == [0.0, 0.5, 1.0, 1.5] and not load.is_closed
    assert (workload.arrivals, workload.request_rate) == ("constant", 2.0)
    load, workload = _plan(request_rate="2", burstiness=0.5, seed=3)
    assert (workload.arrivals, workload.burstiness) == ("gamma", 0.5)
    assert load.times == _plan(request_rate="2", burstiness=0.5, seed=3)[0].times
    _, workload = _plan(ramp_up_strategy="linear", ramp_up_start_rps=1.0, ramp_up_end_rps=9.0)
    assert (workload.arrivals, workload.request_rate) == ("ramp", 9.0)


def test_loads_with_lengths_of_their_own_are_written_to_the_end() -> None:
    assert _plan(dataset="random")[1].ignore_eos
    assert not _plan(dataset="random", ignore_eos=False)[1].ignore_eos


def test_where_requests_go() -> None:
    assert LoadOptions().path == LoadOptions(backend="vllm").path == "/v1/completions"
    assert LoadOptions(backend="openai-chat").path == "/v1/chat/completions"
    assert LoadOptions(endpoint="/api/v1/completions").path == "/api/v1/completions"
    assert LoadOptions(header=("A=b=c", "D=")).headers == {"A": "b=c", "D": ""}


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"num_prompts": 0}, "--num-prompts must be more than 0"),
        ({"request_rate": "0"}, "--request-rate must be more than 0"),
        ({"request_rate": "fast"}, "neither a number nor inf"),
        ({"burstiness": 0.0}, "--burstiness"),
        ({"max_concurrency": 0}, "--max-concurrency"),
        ({"seed": -1}, "--seed"),
        ({"ramp_up_start_rps": 1.0}, "a ramp needs"),
        ({"ramp_up_strategy": "linear", "ramp_up_start_rps": 1.0}, "a ramp needs"),
        (
            {"ramp_up_strategy": "linear", "ramp_up_start_rps": 1.0, "ramp_up_end_rps": 2.0, "request_rate": "3"},
            "leave out --request-rate",
        ),
        ({"arrivals": "constant"}, "needs a --request-rate"),
        ({"arrivals": "trace", "request_rate": "3"}, "leave out --request-rate"),
        ({"endpoint": "/v1/messages"}, "--endpoint"),
    ],
)
def test_contradictions_are_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        LoadOptions(**options)


def test_what_needs_a_trace_is_refused_without_one() -> None:
    with pytest.raises(ConfigError, match="azure or mooncake"):
        _plan(arrivals="trace")
    with pytest.raises(ConfigError, match="--time-scale"):
        _plan(time_scale=2.0)


def test_burstiness_is_for_arrivals_that_have_it() -> None:
    for more in ({}, {"arrivals": "constant", "request_rate": "2"}):
        with pytest.raises(ConfigError, match="--burstiness"):
            _plan(burstiness=0.5, **more)


@pytest.mark.parametrize(
    "options",
    [
        {"dataset_path": "x"},
        {"output_len": 5},
        {"length_scale": 0.5},
        {"prefix_repetition_prefix_len": 5},
        {"dataset_name": "sharegpt", "random_input_len": 5},
    ],
)
def test_options_of_another_dataset_are_not_ignored(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="is for --dataset-name"):
        DatasetOptions(**options)


def test_server_arguments_are_for_a_server_of_our_own() -> None:
    with pytest.raises(ConfigError, match="--server-args"):
        measure_serving(LoadOptions(server_args="--x"), DatasetOptions(dataset_name="box"), "http://127.0.0.1:1")


def test_headers_have_a_name_and_a_value() -> None:
    with pytest.raises(ConfigError, match="NAME=VALUE"):
        _ = LoadOptions(header=("x",)).headers


def test_without_a_seed_each_run_draws_one_of_its_own() -> None:
    seeds = {LoadOptions().seed for _ in range(20)}
    assert len(seeds) > 15 and all(0 <= seed < 2**31 for seed in seeds)
    options = LoadOptions()
    assert replace(options, num_prompts=3).seed == options.seed
