"""Which steps are tried before there are any, and what of a device's memory is counted as theirs."""

from dataclasses import replace

import pytest

from archerfish.config import EngineConfig
from archerfish.config.resolve import ResolvedConfig, ResolveFacts, resolve
from archerfish.execution.profile_run import MemoryReading, measure_peak, profile_steps
from archerfish.request import SamplingParams

FACTS = ResolveFacts(
    max_positions=4096, checkpoint_dtype="float32", can_extend=False, has_cuda=False, num_cores=1, num_parameters=1
)


def config(**changes: int) -> ResolvedConfig:
    return resolve(
        EngineConfig(**{"block_size": 16, "max_num_seqs": 4, "max_num_batched_tokens": 512} | changes), FACTS
    )


@pytest.mark.parametrize(
    ("settings", "lengths"),
    [
        (config(), [509, 1, 1, 1]),
        (config(max_num_seqs=1), [512]),
        (config(max_model_len=200), [200, 200, 111, 1]),
        (config(max_model_len=100), [100, 100, 100, 100]),
        (config(max_num_batched_tokens=4), [1, 1, 1, 1]),
    ],
)
def test_the_largest_step_has_all_the_tokens_and_sequences_there_can_be(
    settings: ResolvedConfig, lengths: list[int]
) -> None:
    largest = profile_steps(settings, 1, SamplingParams()).largest
    assert [chunk.length for chunk in largest.chunks] == lengths
    assert all(chunk.samples for chunk in largest.chunks)


def test_first_steps_are_a_token_and_prompts_that_the_settings_allow() -> None:
    def sizes(settings: ResolvedConfig) -> list[int]:
        return [plan.num_tokens for plan in profile_steps(settings, 1, SamplingParams()).plans]

    assert sizes(config()) == [1, 16, 32, 64]
    assert sizes(config(max_model_len=40)) == [1, 16, 32]
    assert sizes(replace(config(max_num_seqs=1), max_num_batched_tokens=16)) == [1, 16]


def test_no_two_sequences_of_a_step_share_a_block() -> None:
    steps = profile_steps(config(max_model_len=200), 2, SamplingParams(temperature=0.0))
    for plan in (*steps.plans, steps.largest):
        blocks = [block for start in plan.starts for group in start.blocks for block in group]
        assert len(set(blocks)) == len(blocks) and set(blocks) <= set(range(steps.num_blocks))
        for start, chunk in zip(plan.starts, plan.chunks, strict=True):
            assert start.row == chunk.row and len(start.tokens) == chunk.length
            assert all(len(group) == -(-chunk.length // 16) for group in start.blocks)


class Device:
    """Tensors of 100 bytes from before, and whatever a test puts there."""

    def __init__(self) -> None:
        self.now = MemoryReading(allocated=100, peak=900, outside=50)

    def read(self) -> MemoryReading:
        return self.now

    def reset_peak(self) -> None:
        self.now = self.now._replace(peak=self.now.allocated)


@pytest.mark.parametrize(("outside", "wanted"), [(50, 300), (70, 320), (20, 300)])
def test_the_peak_is_counted_from_what_was_there_and_with_what_was_loaded(outside: int, wanted: int) -> None:
    device = Device()

    def run() -> None:
        assert device.now.peak == 100
        device.now = MemoryReading(allocated=150, peak=400, outside=outside)

    assert measure_peak(run, device) == wanted
