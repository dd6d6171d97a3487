"""The ladder: naive generation agrees with the engine on every kind of model, rungs add what they name, rows add up."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from archerfish.bench.ladder import rungs
from archerfish.bench.ladder.ladder import LadderRow, measure_ladder, verdict_lines
from archerfish.bench.ladder.naive import ContiguousCache, generate_recomputing, generate_with_cache
from archerfish.bench.ladder.rungs import LadderSetup, Rung, RungResult, UnsupportedRung, rungs_for
from archerfish.bench.offline.measure import OfflineBench
from archerfish.bench.offline.workloads import OfflineWorkload, shared_prefix_workload
from archerfish.config.settings import EngineConfig
from archerfish.engine.llm import LLM
from archerfish.engine.models import load_decoder
from archerfish.request import SamplingParams
from tests.checkpoints import CONFIG

RUNGS = rungs_for(EngineConfig(), "cpu")
SPECULATION = RUNGS[-1]
LOSSLESS = ["naive", "+ KV cache", "+ paging, batching", "+ prefix cache", "+ native kernels"]

_GEMMA_2 = {
    "model_type": "gemma2",
    "vocab_size": 300,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "sliding_window": 8,
    "query_pre_attn_scalar": 8,
    "attn_logit_softcapping": 5.0,
    "final_logit_softcapping": 3.0,
    "tie_word_embeddings": False,  # A random table that is also the head only repeats its input.
    "rms_norm_eps": 1e-6,
    "torch_dtype": "float32",
}
_MISTRAL = {**CONFIG, "model_type": "mistral", "sliding_window": 8}


def engine_config(directory: Path, values: dict[str, Any], **more: Any) -> EngineConfig:
    file = directory / "shape.json"
    file.write_text(json.dumps(values))
    return EngineConfig(model=str(file), load_format="dummy", device="cpu", threads=1, dtype="float32", **more)


# -- without an engine ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("values", [CONFIG, _MISTRAL, _GEMMA_2], ids=["llama", "window", "window and softcap"])
def test_three_methods_of_generation_write_the_same_tokens(tmp_path: Path, values: dict[str, Any]) -> None:
    config = engine_config(tmp_path, values)
    prompt, num_tokens = tuple(range(5, 26)), 12
    model = load_decoder(config)
    recomputed = generate_recomputing(model, prompt, num_tokens)
    assert len(recomputed) == num_tokens and len(set(recomputed)) > 1
    cache = ContiguousCache(model, 64)
    assert generate_with_cache(model, prompt, num_tokens, cache) == recomputed
    # What an earlier request left behind does not matter.
    assert generate_with_cache(model, prompt[::-1], num_tokens, cache) == generate_recomputing(model, prompt[::-1], 12)
    params = SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True)
    with LLM(config.model, load_format="dummy", device="cpu", threads=1, max_num_seqs=2) as llm:
        assert llm.generate(prompt, params, progress=False)[0].outputs[0].token_ids == recomputed


def test_the_contiguous_cache_has_memory_for_the_longest_request(tmp_path: Path) -> None:
    cache = ContiguousCache(load_decoder(engine_config(tmp_path, CONFIG)), 100)
    assert cache.num_bytes == 100 * 2 * 2 * 2 * 8 * 4  # tokens, layers, keys and values, heads, width, bytes


# -- the table --------------------------------------------------------------------------------------------------------


def test_the_whole_ladder_writes_the_same_tokens(tmp_path: Path) -> None:
    workload = shared_prefix_workload(3, 32, 5, 6, CONFIG["vocab_size"])
    reports: list[tuple[float, str]] = []
    config = engine_config(tmp_path, CONFIG, max_num_seqs=4, speculative_config={"method": "auto"})
    setup, names = LadderSetup(config, workload), [rung.name for rung in rungs_for(config, "cpu")]
    rows = measure_ladder(setup, rungs_for(config, "cpu"), lambda done, name: reports.append((done, name)))
    assert [row.name for row in rows] == names
    assert names == [*LOSSLESS, "+ int8 KV cache", "+ int8 weights", "+ int4 weights", "+ speculation"]
    measured = [row for row in rows if row.reason is None]
    assert [row.name for row in measured if not row.is_lossy] == [*LOSSLESS[:4], "+ speculation"]
    assert all(row.same_tokens for row in measured if not row.is_lossy)
    unmeasured = [row for row in rows if row not in measured]
    assert all(row.reason and row.tokens_per_second is None for row in unmeasured)
    assert reports[0] == (0.0, "naive") and reports[-1] == (len(names), "done")
    assert [done for done, _ in reports[:4]] == [0.0, pytest.approx(1 / 3), pytest.approx(2 / 3), 1.0]
    # Keys and values: none, one request of full length, three requests, three requests with two shared blocks.
    block = 16 * 2 * 2 * 2 * 8 * 4
    assert [row.kv_bytes for row in measured[:3]] == [0, 16 * block, 9 * block]
    assert measured[3].kv_bytes is not None and measured[3].kv_bytes >= 5 * block
    for row in measured:
        assert row.weight_bytes and row.workspace_bytes and row.kv_bytes is not None
        assert row.memory_bytes == row.weight_bytes + row.kv_bytes + row.workspace_bytes
    assert len({row.weight_bytes for row in measured[:4]}) == 1, "the same float32 weights"


def engines_of(config: EngineConfig, device: str = "cpu") -> list[EngineConfig]:
    """Return the settings of every rung that uses the engine."""
    configs: list[EngineConfig] = []

    def note(setup: LadderSetup, _: rungs.ReportShare) -> RungResult:
        configs.append(setup.engine_config)
        return result(1.0)

    setup = LadderSetup(config, shared_prefix_workload(2, 8, 4, 2, 99))
    measure_ladder(setup, [replace(rung, measure=note) for rung in rungs_for(config, device)[2:]])
    return configs


def test_each_rung_switches_on_what_it_names() -> None:
    given = {"method": "suffix", "num_speculative_tokens": 3}
    configs = engines_of(EngineConfig(kernels="avx2", speculative_config=given))
    off = {"method": "off"}
    assert [config.enable_prefix_caching for config in configs] == [False] + [True] * 6
    assert [config.kernels for config in configs] == ["reference"] * 2 + ["avx2"] * 5
    assert [config.kv_cache_dtype for config in configs] == ["auto"] * 3 + ["int8"] * 4
    assert [config.quantization for config in configs] == ["none"] * 4 + ["int8", "int4", "int4"]
    assert [config.speculative_config for config in configs] == [off] * 6 + [given]


def test_formats_that_were_given_replace_the_usual_ones() -> None:
    given = EngineConfig(quantization="int4", quantization_group=32, kv_cache_dtype="bfloat16")
    configs = engines_of(given)
    assert [config.kv_cache_dtype for config in configs] == ["auto"] * 3 + ["bfloat16"] * 3
    assert [config.quantization for config in configs] == ["none"] * 4 + ["int4"] * 2
    assert [config.quantization_group for config in configs] == [64] * 4 + [32] * 2
    names = [rung.name for rung in rungs_for(EngineConfig(), "cuda")]
    assert "+ Triton kernels" in names and "+ fp8 KV cache" in names


def test_a_rung_that_cannot_run_is_left_out_of_those_above() -> None:
    seen = []

    def measure(setup: LadderSetup, _: rungs.ReportShare) -> RungResult | UnsupportedRung:
        seen.append(dict(setup.settings))
        return UnsupportedRung("no") if setup.settings.get("quantization") == "int4" else result(1.0)

    added: tuple[dict[str, Any], ...] = ({}, {"quantization": "int4"}, {"kernels": "auto"})
    listed = [Rung(str(index), measure, settings) for index, settings in enumerate(added)]
    measure_ladder(LadderSetup(EngineConfig(), OfflineWorkload(name="none", jobs=())), listed)
    assert seen == [{}, {"quantization": "int4"}, {"kernels": "auto"}]


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"method": "off"}, "method off drafts no tokens on cpu; name another one"),
        ({}, "random weights repeat themselves"),
    ],
)
def test_speculation_that_is_off_is_not_measured(tmp_path: Path, given: dict[str, Any], reason: str) -> None:
    config = engine_config(tmp_path, CONFIG, speculative_config=given)
    setup = LadderSetup(config, shared_prefix_workload(2, 8, 4, 2, 99), {"speculative_config": given})
    unsupported = SPECULATION.measure(setup, lambda _: None)
    assert isinstance(unsupported, UnsupportedRung) and reason in unsupported.reason


def test_a_first_run_that_pays_for_initialization_does_not_count() -> None:
    left = iter([result(59.0), result(20.0), result(10.0)])
    clock = iter([0.0, 79.0])
    assert rungs._fastest(lambda: next(left), lambda: next(clock)).seconds == 20.0
    # A minute is too long to be repeated.
    left, clock = iter([result(61.0), result(20.0)]), iter([0.0, 61.0])
    assert rungs._fastest(lambda: next(left), lambda: next(clock)).seconds == 61.0
    left, clock = iter([result(1.0), result(2.0), result(0.5), result(0.1)]), iter([0.0, 1.0, 3.0, 3.5])
    assert rungs._fastest(lambda: next(left), lambda: next(clock)).seconds == 0.5


def test_every_request_is_in_the_warm_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, int, int]] = []
    run = OfflineBench.run

    def note(bench: OfflineBench, workload: OfflineWorkload, *given: Any, cache_salt: str, **more: Any) -> Any:
        seen.append((cache_salt, len(workload.jobs), workload.num_output_tokens))
        return run(bench, workload, *given, cache_salt=cache_salt, **more)

    monkeypatch.setattr(OfflineBench, "run", note)
    setup = LadderSetup(engine_config(tmp_path, CONFIG), shared_prefix_workload(3, 8, 4, 5, 99))
    rungs.run_engine(setup, lambda _: None)
    assert seen[0] == ("warm-up", 3, 6)
    assert {salt for salt, *_ in seen[1:]} >= {"1", "2"}
    assert {tuple(counts) for _, *counts in seen[1:]} == {(3, 15)}


def test_the_smallest_ladder(tmp_path: Path) -> None:
    """A model that native kernels run, and engines that hold hardly more than the workload."""
    values = {**CONFIG, "head_dim": 16}
    config = engine_config(tmp_path, values, speculative_config={"method": "auto"})
    setup = LadderSetup(config, shared_prefix_workload(1, 1, 1, 4, CONFIG["vocab_size"]))
    rows = measure_ladder(setup, rungs_for(config, "cpu"))
    measured = [row for row in rows if row.reason is None]
    assert all(row.same_tokens for row in measured if not row.is_lossy)
    if measured[4].name == LOSSLESS[4]:
        assert [row.name for row in measured] == [row.name for row in rows]
        sizes = {row.name: row.weight_bytes or 0 for row in rows}
        assert sizes["naive"] > sizes["+ int8 weights"] > sizes["+ int4 weights"] == sizes["+ speculation"]


def result(seconds: float, outputs: tuple[list[int], ...] = ([1, 2], [3, 4])) -> RungResult:
    return RungResult(
        seconds=seconds,
        outputs=outputs,
        latencies=(seconds / 2, seconds),
        weight_bytes=32,
        kv_bytes=8,
        workspace_bytes=2,
        cached_share=0.25,
    )


def ladder_of(*results: RungResult | str, lossy: tuple[int, ...] = ()) -> tuple[LadderRow, ...]:
    listed = [
        Rung(
            str(index),
            lambda _setup, _report, given=given: UnsupportedRung(given) if isinstance(given, str) else given,
            why_slower=lambda slow: f"{slow.cached_share:.0%} cached",
            is_lossy=index in lossy,
        )
        for index, given in enumerate(results)
    ]
    return measure_ladder(LadderSetup(EngineConfig(), OfflineWorkload(name="none", jobs=())), listed)


def test_rows_are_worked_out_and_a_missing_rung_is_passed_over() -> None:
    first, missing, last = ladder_of(result(8.0), "not yet", result(2.0))
    assert (first.seconds_per_request, first.mean_latency, first.tokens_per_second) == (4.0, 6.0, 0.5)
    assert (first.ratio, first.total_ratio, first.note, first.same_tokens) == (None, None, None, True)
    assert (missing.reason, missing.seconds, missing.same_tokens) == ("not yet", None, None)
    assert (last.ratio, last.total_ratio, last.note, last.memory_bytes) == (4.0, 4.0, None, 42)
    assert missing.memory_bytes is None


def test_speculation_that_is_slower_says_how_much_was_accepted() -> None:
    assert "25% of the draft tokens were accepted, and with 2 requests" in SPECULATION.why_slower(
        replace(result(1.0), acceptance=0.25)
    )
    assert "no step had draft tokens" in SPECULATION.why_slower(result(1.0))


def test_a_slower_row_says_why() -> None:
    *_, last = ladder_of(result(8.0), result(2.0), result(4.0))
    assert (last.ratio, last.total_ratio) == (0.5, 2.0)
    assert last.note == "slower than the line above: 25% cached"


def test_outputs_that_differ_are_reported() -> None:
    _, same, differing = ladder_of(result(8.0), result(4.0), result(2.0, ([1, 2], [3, 5])))
    assert same.same_tokens and not differing.same_tokens
    assert (differing.note or "").startswith("1 of 2 outputs differ, request 2 from its token 2 on")


def test_a_lossless_rung_above_a_lossy_one_writes_what_that_one_wrote() -> None:
    others = ([1, 2], [3, 5])
    rows = ladder_of(result(8.0), result(4.0, others), result(2.0, others), lossy=(1,))
    assert [row.same_tokens for row in rows] == [True, False, True]
    assert verdict_lines(rows)[-1] == "All 2 lossless lines wrote the tokens that they must."
    rows = ladder_of(result(8.0), result(4.0, others), result(2.0), lossy=(1,))
    assert rows[-1].same_tokens is False and verdict_lines(rows)[-1].startswith("NOT all lossless lines")
