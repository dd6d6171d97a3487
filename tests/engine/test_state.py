"""What the engine tells of itself: read off the live objects, with costs that equal those worked out by hand."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from archerfish.arch import Arch, LayerSpec, MlpSpec
from archerfish.arch.cost import (
    attention_flops,
    kv_bytes_read,
    logits_flops,
    matrix_flops_per_token,
    step_cost,
    weight_bytes_read,
)
from archerfish.engine.engine import Engine
from archerfish.execution.scripted import ScriptedExecutor
from archerfish.kvcache.tables import KVTables
from archerfish.metrics.state import EngineState, LastStep, StepRecord, record_step
from archerfish.request import Request, SamplingParams
from archerfish.scheduling.plan import Chunk
from archerfish.scheduling.policy import ContinuousBatching
from archerfish.scheduling.scheduler import Limits, Scheduler
from tests.arch import shapes
from tests.arch.shapes import attention, uniform
from tests.lanes import examples

SMALL = uniform(100, 32, 3, LayerSpec(attention=attention(4, 2, 8), feed_forward=MlpSpec(size=40)))
TOKEN_FLOPS = 2 * 3 * (32 * 64 + 32 * 32 + 3 * 32 * 40)
LOGITS_FLOPS = 2 * 100 * 32
KEY_FLOPS = 3 * 4 * 32
KEY_BYTES = 3 * 2 * 16 * 4
WEIGHT_BYTES = 2 * (3 * (32 * 64 + 32 * 32 + 3 * 32 * 40 + 2 * 32) + 32 + 100 * 32)
COST = step_cost(SMALL, bytes_per_weight=2, bytes_per_value=4)


def step(*chunks: tuple[int, int] | tuple[int, int, bool], seconds: float = 0.5) -> LastStep:
    """Chunks as (start, length), which draw a token unless told otherwise."""
    made = [Chunk(row, *chunk[:2], chunk[2] if len(chunk) > 2 else True) for row, chunk in enumerate(chunks)]
    return LastStep(made, sum(chunk.length for chunk in made), seconds)


# -- what a step came to ----------------------------------------------------------------------------------------------


def test_a_decode_step_by_hand() -> None:
    keys = (9 + 1) + (99 + 1)
    assert record_step(step((9, 1), (99, 1)), COST) == StepRecord(
        prefill_tokens=0,
        decode_tokens=2,
        draft_tokens=0,
        num_sequences=2,
        seconds=0.5,
        prefill_flops=0.0,
        decode_flops=2 * (TOKEN_FLOPS + LOGITS_FLOPS) + keys * KEY_FLOPS,
        prefill_bytes=0.0,
        decode_bytes=WEIGHT_BYTES + keys * KEY_BYTES,
    )


def test_a_prompt_by_hand() -> None:
    record = record_step(step((4, 6)), COST)
    seen = 5 + 6 + 7 + 8 + 9 + 10
    assert (record.prefill_tokens, record.decode_tokens) == (6, 0)
    # One position has its logits made. Ten keys are read once, though 45 times looked at.
    assert record.prefill_flops == 6 * TOKEN_FLOPS + LOGITS_FLOPS + seen * KEY_FLOPS
    assert record.prefill_bytes == pytest.approx(WEIGHT_BYTES + 10 * KEY_BYTES)
    assert (record.decode_flops, record.decode_bytes) == (0, 0)


def test_a_piece_of_a_prompt_draws_nothing_and_needs_no_head() -> None:
    record = record_step(step((0, 6, False)), COST)
    assert record.prefill_flops == 6 * TOKEN_FLOPS + 21 * KEY_FLOPS
    assert record.prefill_bytes == pytest.approx(WEIGHT_BYTES - 2 * 100 * 32 + 6 * KEY_BYTES)


def test_weights_are_shared_by_the_tokens_share() -> None:
    record = record_step(step((10, 1), (0, 7), (20, 1), (30, 1)), COST)
    assert (record.prefill_tokens, record.decode_tokens, record.num_sequences) == (7, 3, 4)
    assert record.num_tokens == 10
    assert record.prefill_bytes == pytest.approx(0.7 * WEIGHT_BYTES + 7 * KEY_BYTES)
    assert record.decode_bytes == pytest.approx(0.3 * WEIGHT_BYTES + (11 + 21 + 31) * KEY_BYTES)
    assert record.decode_flops == 3 * (TOKEN_FLOPS + LOGITS_FLOPS) + (11 + 21 + 31) * KEY_FLOPS


def test_without_a_cost_only_tokens_are_told() -> None:
    assert record_step(step((10, 1), (0, 7)), None) == StepRecord(7, 1, 0, 2, 0.5)


@examples(150)
@given(
    model=st.sampled_from([SMALL, shapes.LLAMA_3_8B, shapes.GEMMA_3_1B, shapes.MISTRAL_7B, shapes.MIXTRAL_8X7B]),
    chunks=st.lists(
        st.tuples(st.integers(0, 9000), st.one_of(st.just(1), st.integers(2, 700)), st.booleans()), min_size=1
    ),
)
def test_a_step_costs_what_its_chunks_cost_one_by_one(model: Arch, chunks: list[tuple[int, int, bool]]) -> None:
    chunks = [(start, length, samples or length == 1) for start, length, samples in chunks]
    record = record_step(step(*chunks), step_cost(model, 2, 1))
    num_tokens, num_logits = sum(length for _, length, _ in chunks), sum(samples for *_, samples in chunks)
    weights = weight_bytes_read(model, num_tokens, num_logits, 2)
    for is_prefill, found_flops, found_bytes in (
        (True, record.prefill_flops, record.prefill_bytes),
        (False, record.decode_flops, record.decode_bytes),
    ):
        phase = [chunk for chunk in chunks if (chunk[1] > 1) == is_prefill]
        flops, num_bytes = 0.0, 0.0
        for start, length, samples in phase:
            flops += length * matrix_flops_per_token(model) + samples * logits_flops(model)
            flops += attention_flops(model, start, length)
            num_bytes += kv_bytes_read(model, start, length, 1) + weights * length / num_tokens
        assert found_flops == pytest.approx(flops)
        assert found_bytes == pytest.approx(num_bytes)


# -- read off a live engine -------------------------------------------------------------------------------------------


class Ticks:
    """A clock that moves by one second whenever it is read."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


def engine(*, rows: int = 2, blocks: int = 16) -> Engine:
    limits = Limits(max_num_seqs=rows, max_num_batched_tokens=32, max_model_len=64)
    tables = KVTables(blocks, 4, (None,), step_tokens=32, prefix_caching=True)
    scheduler = Scheduler(limits, tables, ContinuousBatching())
    return Engine(scheduler, ScriptedExecutor(block_size=4), Ticks(), cost=COST, check_invariants=True)


def request(request_id: str, length: int, *, max_tokens: int = 4) -> Request:
    first = ord(request_id)
    params = SamplingParams(max_tokens=max_tokens)
    return Request(
        request_id=request_id, prompt_token_ids=tuple(range(first, first + length)), params=params, arrival_time=0.0
    )


def test_an_engine_that_has_not_begun() -> None:
    assert engine().state() == EngineState(
        time=1.0,
        num_running=0,
        num_waiting=0,
        num_waiting_tokens=0,
        max_num_seqs=2,
        max_num_batched_tokens=32,
        num_blocks=16,
        num_free_blocks=16,
        num_cached_blocks=0,
        num_blocks_in_use=0,
        num_steps=0,
        num_computed_tokens=0,
        num_generated_tokens=0,
        num_preemptions=0,
        num_prefix_tokens_queried=0,
        num_prefix_tokens_hit=0,
        busy_time=0.0,
        last_step=None,
    )


def test_an_engine_at_work() -> None:
    serving = engine()
    for one in (request("a", 6), request("b", 9), request("z", 11)):
        serving.add(one)
    serving.step()
    state = serving.state()
    assert (state.num_running, state.num_waiting, state.num_waiting_tokens) == (2, 1, 11)
    # Prompts of 6 and 9 tokens take 2 and 3 blocks of 4.
    assert (state.num_free_blocks, state.num_cached_blocks, state.num_blocks_in_use) == (11, 0, 5)
    assert (state.num_steps, state.num_computed_tokens, state.num_generated_tokens) == (1, 15, 2)
    assert (state.num_prefix_tokens_queried, state.num_prefix_tokens_hit) == (15, 0)
    assert state.busy_time == 1.0
    assert state.last_step is not None and state.last_step.prefill_tokens == 15
    serving.step()
    state = serving.state()
    assert state.last_step == record_step(step((6, 1), (9, 1), seconds=1.0), COST)
    assert (state.num_steps, state.num_computed_tokens, state.busy_time) == (2, 17, 2.0)


def test_what_waits_is_counted_in_tokens_until_it_runs_or_goes() -> None:
    serving = engine(rows=1)
    for one in (request("a", 6), request("b", 9), request("c", 11)):
        serving.add(one)
    assert serving.state().num_waiting_tokens == 26
    serving.step()
    assert serving.state().num_waiting_tokens == 20
    serving.cancel("b")
    assert serving.state().num_waiting_tokens == 11
    while serving.has_work:
        serving.step()
    assert serving.state().num_waiting_tokens == 0


def test_a_preempted_sequence_waits_with_all_its_tokens() -> None:
    serving = engine(blocks=4)
    serving.add(request("a", 7, max_tokens=9))
    serving.add(request("m", 7, max_tokens=9))
    while not serving.scheduler.num_preemptions:
        serving.step()
    state = serving.state()
    assert (state.num_preemptions, state.num_running, state.num_waiting) == (1, 1, 1)
    assert state.num_waiting_tokens == 7 + 2
    while serving.has_work:
        serving.step()
        assert serving.state().num_waiting_tokens == 9 * serving.state().num_waiting


def test_the_last_step_is_told_again_while_nothing_is_computed() -> None:
    serving = engine()
    serving.add(request("a", 6, max_tokens=1))
    serving.step()
    before = serving.state()
    serving.step()
    after = serving.state()
    assert (after.num_steps, after.last_step) == (before.num_steps, before.last_step)


def test_the_block_map_shows_each_block() -> None:
    serving = engine()
    serving.add(request("a", 6, max_tokens=1))
    serving.add(request("m", 9, max_tokens=9))
    serving.step()
    # Blocks 0 and 1 were a's: the first was full and stays cached, the second is free again.
    assert serving.scheduler.tables.pool.states() == bytes([1, 0, 2, 2, 2, *[0] * 11])
    state = serving.state()
    assert (state.num_free_blocks, state.num_cached_blocks, state.num_blocks_in_use) == (12, 1, 3)


def test_a_state_goes_over_the_wire() -> None:
    serving = engine()
    serving.add(request("a", 6))
    for _ in range(3):
        state = serving.state()
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(state), type=EngineState) == state
        assert msgspec.json.decode(msgspec.json.encode(state), type=EngineState) == state
        serving.step()


def test_guesses_are_counted_beside_the_tokens_they_follow() -> None:
    plain = record_step(step((9, 1), (99, 1)), COST)
    chunks, num_tokens, seconds, _ = step((9, 1), (99, 1))
    guessed = record_step(LastStep(chunks, num_tokens + 3, seconds, 3), COST)
    assert (guessed.prefill_tokens, guessed.decode_tokens, guessed.draft_tokens) == (0, 2, 3)
    assert guessed.num_tokens == 5
    assert guessed.decode_flops == plain.decode_flops + 3 * (COST.token_flops + COST.logits_flops)
