"""The ladder: the naive ways agree with the engine on every kind of model, and rows are worked out from climbs."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from archerfish.bench.ladder import rungs
from archerfish.bench.ladder.ladder import climb_ladder
from archerfish.bench.ladder.naive import ContiguousCache, write_recomputing, write_with_cache
from archerfish.bench.ladder.rungs import RUNGS, Ascent, Cannot, Climb, Rung
from archerfish.bench.offline.measure import OfflineBench
from archerfish.bench.offline.workloads import OfflineWorkload, shared_prefix_workload
from archerfish.config.settings import EngineConfig
from archerfish.engine.llm import LLM
from archerfish.engine.models import load_decoder
from archerfish.request import SamplingParams
from tests.checkpoints import CONFIG

SPECULATION = next(rung for rung in RUNGS if rung.name == "+ speculation")

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
    "tie_word_embeddings": False,  # A random table that is also the head only says again what it was told.
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
def test_three_ways_to_write_give_the_same_tokens(tmp_path: Path, values: dict[str, Any]) -> None:
    config = engine_config(tmp_path, values)
    prompt, num_tokens = tuple(range(5, 26)), 12
    model = load_decoder(config)
    recomputed = write_recomputing(model, prompt, num_tokens)
    assert len(recomputed) == num_tokens and len(set(recomputed)) > 1
    cache = ContiguousCache(model, 64)
    assert write_with_cache(model, prompt, num_tokens, cache) == recomputed
    # What an earlier request left behind does not matter.
    assert write_with_cache(model, prompt[::-1], num_tokens, cache) == write_recomputing(model, prompt[::-1], 12)
    params = SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True)
    with LLM(config.model, load_format="dummy", device="cpu", threads=1, max_num_seqs=2) as llm:
        assert llm.generate(prompt, params, progress=False)[0].outputs[0].token_ids == recomputed


def test_the_contiguous_cache_takes_room_for_the_longest_request(tmp_path: Path) -> None:
    cache = ContiguousCache(load_decoder(engine_config(tmp_path, CONFIG)), 100)
    assert cache.num_bytes == 100 * 2 * 2 * 2 * 8 * 4  # tokens, layers, keys and values, heads, width, bytes


# -- the table --------------------------------------------------------------------------------------------------------


def test_the_whole_ladder_writes_the_same_tokens(tmp_path: Path) -> None:
    workload = shared_prefix_workload(3, 32, 5, 6, CONFIG["vocab_size"])
    told: list[tuple[float, str]] = []
    config = engine_config(tmp_path, CONFIG, max_num_seqs=4, speculative_config={"method": "auto"})
    ascent = Ascent(config, workload)
    rows = climb_ladder(ascent, lambda done, name: told.append((done, name)))
    assert [row.name for row in rows] == [rung.name for rung in RUNGS]
    measured = [row for row in rows if row.reason is None]
    assert [row.name for row in measured] == [*(rung.name for rung in RUNGS[:4]), "+ speculation"]
    assert all(row.same_tokens for row in measured)
    unmeasured = [row for row in rows if row not in measured]
    assert all(row.reason and row.tokens_per_second is None for row in unmeasured)
    assert told[0] == (0.0, RUNGS[0].name) and told[-1] == (len(RUNGS), "done")
    assert [done for done, _ in told[:4]] == [0.0, pytest.approx(1 / 3), pytest.approx(2 / 3), 1.0]
    # Keys and values: none, one request of full length, three requests, three requests with two shared blocks.
    block = 16 * 2 * 2 * 2 * 8 * 4
    assert [row.kv_bytes for row in measured[:3]] == [0, 16 * block, 9 * block]
    assert measured[3].kv_bytes is not None and measured[3].kv_bytes >= 5 * block


def test_no_rung_speculates_before_the_one_that_does(monkeypatch: pytest.MonkeyPatch) -> None:
    configs: list[EngineConfig] = []

    def note(ascent: Ascent, _: rungs.Tell, **changes: Any) -> Climb:
        configs.append(rungs._engine_config(ascent, changes))
        return climb(1.0)

    monkeypatch.setattr(rungs, "_through_engine", note)
    monkeypatch.setattr(rungs, "why_not_native", lambda _: None)
    asked = {"method": "suffix", "num_speculative_tokens": 3}
    ascent = Ascent(EngineConfig(device="cpu", speculative_config=asked), shared_prefix_workload(2, 8, 4, 2, 99))
    climb_ladder(ascent, rungs=RUNGS[2:])
    assert [config.speculative_config for config in configs] == [{"method": "off"}] * 3 + [asked] * 3
    assert [config.quantization for config in configs] == ["none"] * 4 + ["int8"] * 2
    assert [config.kv_cache_dtype for config in configs] == ["auto"] * 5 + ["int8"]


def test_speculation_that_is_off_is_not_measured(tmp_path: Path) -> None:
    config = engine_config(tmp_path, CONFIG, speculative_config={"method": "off"})
    cannot = rungs.speculate(Ascent(config, shared_prefix_workload(2, 8, 4, 2, 99)), lambda _: None)
    assert isinstance(cannot, Cannot) and "method off speculates nothing" in cannot.reason


def test_a_first_climb_that_pays_for_what_is_there_only_once_does_not_count() -> None:
    left = iter([climb(59.0), climb(20.0), climb(10.0)])
    clock = iter([0.0, 79.0])
    assert rungs._best(lambda: next(left), lambda: next(clock)).seconds == 20.0
    # A minute is too long to be climbed again.
    left, clock = iter([climb(61.0), climb(20.0)]), iter([0.0, 61.0])
    assert rungs._best(lambda: next(left), lambda: next(clock)).seconds == 61.0
    left, clock = iter([climb(1.0), climb(2.0), climb(0.5), climb(0.1)]), iter([0.0, 1.0, 3.0, 3.5])
    assert rungs._best(lambda: next(left), lambda: next(clock)).seconds == 0.5


def test_every_request_is_in_the_warm_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, int, int]] = []
    run = OfflineBench.run

    def note(bench: OfflineBench, workload: OfflineWorkload, *given: Any, cache_salt: str, **more: Any) -> Any:
        seen.append((cache_salt, len(workload.jobs), workload.num_output_tokens))
        return run(bench, workload, *given, cache_salt=cache_salt, **more)

    monkeypatch.setattr(OfflineBench, "run", note)
    rungs.batch(Ascent(engine_config(tmp_path, CONFIG), shared_prefix_workload(3, 8, 4, 5, 99)), lambda _: None)
    assert seen[0] == ("warm-up", 3, 6)
    assert {salt for salt, *_ in seen[1:]} >= {"1", "2"}
    assert {tuple(counts) for _, *counts in seen[1:]} == {(3, 15)}


def test_the_smallest_ladder(tmp_path: Path) -> None:
    """Of a model that native kernels run, whose engines hold hardly more than the workload."""
    values = {**CONFIG, "head_dim": 16}
    rows = climb_ladder(
        Ascent(
            engine_config(tmp_path, values, speculative_config={"method": "auto"}),
            shared_prefix_workload(1, 1, 1, 4, CONFIG["vocab_size"]),
        )
    )
    assert all(row.same_tokens for row in rows if row.reason is None)
    assert [row.name for row in rows if row.reason is None][:5] == [rung.name for rung in RUNGS[:5]]


def climb(seconds: float, answers: tuple[list[int], ...] = ([1, 2], [3, 4])) -> Climb:
    return Climb(seconds=seconds, answers=answers, latencies=(seconds / 2, seconds), kv_bytes=8, cached_share=0.25)


def ladder_of(*climbs: Climb | str) -> tuple[Any, ...]:
    rungs = [
        Rung(
            str(index),
            Cannot(one) if isinstance(one, str) else lambda _ascent, _tell, one=one: one,
            lambda climb: f"{climb.cached_share:.0%} cached",
        )
        for index, one in enumerate(climbs)
    ]
    return climb_ladder(Ascent(EngineConfig(), OfflineWorkload(name="none", jobs=())), rungs=rungs)


def test_rows_are_worked_out_and_a_missing_rung_is_passed_over() -> None:
    first, missing, last = ladder_of(climb(8.0), "not yet", climb(2.0))
    assert (first.seconds_per_request, first.mean_latency, first.tokens_per_second) == (4.0, 6.0, 0.5)
    assert (first.ratio, first.total_ratio, first.note, first.same_tokens) == (None, None, None, True)
    assert (missing.reason, missing.seconds, missing.same_tokens) == ("not yet", None, None)
    assert (last.ratio, last.total_ratio, last.note) == (4.0, 4.0, None)


def test_speculation_that_is_slower_says_how_much_was_accepted() -> None:
    assert "25% of the draft tokens were accepted, and with 2 requests" in SPECULATION.why_slower(
        replace(climb(1.0), acceptance=0.25)
    )
    assert "no step had a draft" in SPECULATION.why_slower(climb(1.0))


def test_a_slower_row_says_why() -> None:
    *_, last = ladder_of(climb(8.0), climb(2.0), climb(4.0))
    assert (last.ratio, last.total_ratio) == (0.5, 2.0)
    assert last.note == "slower than the line above: 25% cached"


def test_answers_that_differ_are_told() -> None:
    _, same, parted = ladder_of(climb(8.0), climb(4.0), climb(2.0, ([1, 2], [3, 5])))
    assert same.same_tokens and not parted.same_tokens
    assert parted.note.startswith("1 of 2 answers differ, request 2 from its token 2 on")
