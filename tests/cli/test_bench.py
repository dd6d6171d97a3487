"""Benchmarks from the command line: what they list, refuse and print. Nothing here depends on how fast anything is."""

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from archerfish.cli import bench
from archerfish.cli.bench.ladder import bar_picture
from tests.checkpoints import CONFIG
from tests.cli.running import MODEL, archerfish, assert_refused

_SMALL = ("--kv-cache-memory-bytes", "64M")


def run_json(*arguments: str) -> tuple[dict[str, Any], dict[str, Any]]:
    result = archerfish("bench", *arguments, "--json")
    assert result.exit_code == 0, result.stderr
    record = json.loads(result.stdout)
    return record["conditions"], record["result"]


def test_help_lists_every_benchmark_in_its_own_words() -> None:
    text = archerfish("bench", "--help").stdout
    for name, entry in bench._COMMANDS.items():
        assert f"{name} " in text
        command = import_module(f"archerfish.cli.bench.{entry.module}").command
        assert (command.name, command.help.partition("\n")[0]) == (name, entry.summary)
    assert archerfish("bench").stdout == text


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("laddr",), f"there is no command 'laddr'; choose from {', '.join(bench._COMMANDS)}"),
        (("latency", "--input-len", "0"), "--input-len"),
        (("throughput", "--workload", "nano-vllm", "--num-prompts", "3"), "--workload nano-vllm defines all requests"),
        (("throughput", "--dataset-path", "x"), "add --dataset-name prompts"),
        (("throughput", "--dataset-name", "prompts"), "needs --dataset-path"),
        (("ladder", "--batching", "static"), "--batching: the ladder sets it"),
        (
            ("ladder", "--speculative-config", '{"verification": "typical"}'),
            "verification typical: the ladder sets it",
        ),
        (("ladder", "--report", "/no/such/page.html"), "--report: there is no directory /no/such"),
        (
            ("kernels", "--operation", "linar"),
            "--operation linar: there is no such operation; choose from linear, embed",
        ),
        (("kernels", "--max-num-seqs", "3"), "--max-num-seqs"),
    ],
)
def test_what_cannot_be_measured_is_refused(arguments: tuple[str, ...], says: str) -> None:
    assert_refused(archerfish("bench", *arguments), says)


def test_a_workload_that_the_context_cannot_hold_is_refused() -> None:
    result = archerfish("bench", "latency", *MODEL, *_SMALL, "--max-model-len", "64", "--input-len", "60")
    assert result.exit_code == 2
    assert "a request of 188 tokens" in result.stderr and "holds 64" in result.stderr


def test_latency() -> None:
    sizes = (
        "--input-len",
        "8",
        "--output-len",
        "3",
        "--batch-size",
        "2",
        "--num-iters",
        "2",
        "--num-iters-warmup",
        "1",
    )
    conditions, found = run_json("latency", *MODEL, *_SMALL, *sizes)
    assert (conditions["model"], conditions["settings"]["threads"]) == ("random-llama", 1)
    assert conditions["peak"]["flops"] > 0
    assert (found["num_iterations"], found["ttft"]["count"], found["tpot"]["count"]) == (2, 4, 4)
    assert (found["prefill"]["num_tokens"], found["decode"]["num_tokens"]) == (2 * 16, 2 * 4)
    text = archerfish("bench", "latency", *MODEL, *_SMALL, *sizes).stdout
    for words in ("2 batches of 2 requests, 8 tokens in, 3 out", "time to first token", "p99", "MFU", "MBU", "decode"):
        assert words in text


def test_throughput_of_random_prompts_and_of_a_file(tmp_path: Path) -> None:
    sizes = ("--num-prompts", "3", "--output-len", "2")
    _, found = run_json("throughput", *MODEL, *_SMALL, *sizes, "--input-len", "8")
    assert (found["num_requests"], found["num_input_tokens"], found["num_output_tokens"]) == (3, 24, 6)
    (tmp_path / "prompts.jsonl").write_text('{"prompt": [1, 2, 3]}\n{"prompt": [4]}\n')
    file = ("--dataset-name", "prompts", "--dataset-path", str(tmp_path / "prompts.jsonl"))
    _, found = run_json("throughput", *MODEL, *_SMALL, *sizes, *file)
    assert (found["workload"], found["num_input_tokens"], found["num_output_tokens"]) == ("prompts", 7, 6)
    text = archerfish("bench", "throughput", *MODEL, *_SMALL, *file).stdout
    assert "prompts, 2 requests, 4 tokens in, 128 out" in text
    assert text.splitlines()[-1].startswith("Throughput: ") and text.endswith(" output tokens/s\n")


def test_the_ladder(tmp_path: Path) -> None:
    sizes = ("--num-prompts", "2", "--shared-len", "32", "--own-len", "4", "--output-len", "3")
    sizes += ("--speculative-config", '{"method": "auto"}')
    conditions, found = run_json("ladder", *MODEL, *_SMALL, *sizes)
    assert conditions["settings"]["dtype"] == "float32"
    assert (found["num_requests"], found["shared_len"], found["own_len"], found["output_len"]) == (2, 32, 4, 3)
    rows = {row["name"]: row for row in found["rows"]}
    exact = [name for name in rows if not rows[name]["is_lossy"]]
    assert exact[-1] == "+ speculation"
    for name in exact:
        assert rows[name]["same_tokens"] or "the kernels cannot run this model" in rows[name]["reason"]
    assert rows["+ prefix cache"]["ratio"] > 0 and rows["+ speculation"]["seconds"] > 0
    for name in ("+ int8 KV cache", "+ int8 weights", "+ int4 weights"):
        assert rows[name]["seconds"] or "kernels" in rows[name]["reason"]
    assert rows["naive"]["weight_bytes"] > 0 and rows["naive"]["workspace_bytes"] > 0
    page = tmp_path / "ladder.html"
    ran = archerfish("bench", "ladder", *MODEL, *_SMALL, *sizes, "--report", str(page))
    assert all(name in ran.stdout for name in rows) and "lossless lines wrote the tokens that they must." in ran.stdout
    html = page.read_text(encoding="utf-8")
    assert "What each optimization adds to random-llama" in html and all(name in html for name in rows)


def test_bars_are_as_long_as_their_share() -> None:
    assert bar_picture(1.0) == "█" * 16
    assert bar_picture(0.5) == "█" * 8
    assert bar_picture(0.0) == "▏"


def test_kernels_need_nothing_but_a_shape(tmp_path: Path) -> None:
    file = tmp_path / "shape.json"
    file.write_text(json.dumps(CONFIG))
    sizes = ("--model", str(file), "--threads", "1", "--batch-size", "2", "--context", "16", "--seconds", "0.001")
    conditions, found = run_json("kernels", *sizes)
    assert conditions["model"] == "shape.json"
    assert found["unused"] == ["scale", "softcap", "layer_norm", "route", "experts"]
    assert all(timing["ratio"] >= 1.0 and timing["roof_share"] > 0 for timing in found["timings"])
    assert "reference" in {timing["kernel"] for timing in found["timings"]}
    text = archerfish("bench", "kernels", *sizes, "--operation", "attend").stdout
    assert "prompt of 16 tokens" in text and "qkv" not in text and "Measured peak" in text
    chosen = ("--operation", "linear", "--format", "none", "--format", "int4 g64")
    _, found = run_json("kernels", *sizes, *chosen)
    formats = {timing["format"] for timing in found["timings"]}
    assert formats == ({None, "int4 g64"} if found["integer_flops"] else {None})
    refused = archerfish("bench", "kernels", *sizes, "--format", "int5")
    assert refused.exit_code == 2 and "choose from none, int8, w8a8, int4 g32" in refused.stderr
