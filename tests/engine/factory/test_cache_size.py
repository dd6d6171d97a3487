"""A GPU's cache is made of what the largest step, tried once, leaves; and a start that knows it tries nothing."""

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from archerfish.config import EngineConfig
from archerfish.config.resolve import ResolvedConfig, ResolveFacts, resolve
from archerfish.disk_cache import DiskCache
from archerfish.engine.factory.cache_size import ProfileSetup, as_does_not_fit, measured_size
from archerfish.engine.factory.executors import build_executor
from archerfish.engine.factory.kernels import choose_kernels
from archerfish.errors import DoesNotFit
from archerfish.execution.executor import Executor, FinishedStep
from archerfish.execution.memory import CacheSize, MemoryBudget
from archerfish.execution.profile_run import MemoryReading
from archerfish.kvcache.layout import kv_layout
from archerfish.kvcache.storage import KVStorage
from archerfish.models.decoder import Decoder
from archerfish.ops.triton.runtime import kernel_launch
from archerfish.scheduling.plan import Plan, StepResult
from archerfish.weights.load import random_weights
from tests.execution.archs import FULL, MAX_POSITIONS
from tests.execution.small_models import ARCHS

WEIGHTS = 1_000_000
FACTS = ResolveFacts(
    max_positions=MAX_POSITIONS,
    checkpoint_dtype="float32",
    can_extend=False,
    has_cuda=False,
    num_cores=3,
    num_parameters=1,
)


def config(**changes: Any) -> ResolvedConfig:
    given = {"max_model_len": 512, "max_num_seqs": 4, "max_num_batched_tokens": 64, "gpu_memory_utilization": 0.5}
    return resolve(EngineConfig(**(given | changes)), FACTS)


@dataclass
class Device:
    """Counts what steps take: the small cache, and so many bytes while one is run."""

    taken: int
    has_room: bool = True
    is_compile_only: bool = False
    launched: list[tuple[int, bool]] = field(default_factory=list)
    """Tokens of a step, and whether it was only compiled."""
    cache: int = 0
    peak: int = 0
    closed: int = 0

    def build(self, num_blocks: int) -> "Device":
        self.cache = num_blocks * kv_layout(FULL).block_bytes(16, 4)
        return self

    max_in_flight = 1

    def launch(self, plan: Plan) -> FinishedStep:
        if not self.has_room:
            raise torch.OutOfMemoryError("no room")
        self.launched.append((plan.num_tokens, self.is_compile_only))
        if not self.is_compile_only:
            self.peak = WEIGHTS + self.cache + self.taken
        return FinishedStep(StepResult([]))

    def close(self) -> None:
        self.closed += 1

    @contextmanager
    def compile_only(self, num_threads: int) -> Iterator[None]:
        assert num_threads == 3
        self.is_compile_only = True
        yield
        self.is_compile_only = False

    def read(self) -> MemoryReading:
        return MemoryReading(allocated=WEIGHTS, peak=self.peak, outside=0)

    def reset_peak(self) -> None:
        self.peak = WEIGHTS


def sized(device: Device, directory: Path, available: int = 100_000_000, **changes: Any) -> CacheSize:
    memory = MemoryBudget(FULL, kv_layout(FULL), available, 4)
    setup = ProfileSetup(device.build, device.compile_only, device, DiskCache("steps", "1", directory), "a device")
    return measured_size(memory, config(**changes), setup, WEIGHTS, {"temperature": 0.0, "repetition_penalty": 2.0})


def test_what_the_largest_step_leaves_is_the_cache(tmp_path: Path) -> None:
    block = kv_layout(FULL).block_bytes(16, 4)
    taken = (50_000_000 - WEIGHTS - 100 * block - 5) // 2  # Once for steps that are captured, once for others.
    assert sized(Device(taken), tmp_path).num_blocks == 100


def test_everything_is_compiled_first_and_the_largest_step_is_run(tmp_path: Path) -> None:
    device = Device(10_000_000)
    sized(device, tmp_path)
    assert device.launched == [(1, True), (16, True), (32, True), (64, True), (64, True), (64, False)]
    assert device.closed == 1


def test_what_was_measured_is_kept_for_the_same_model_and_settings(tmp_path: Path) -> None:
    first = sized(Device(10_000_000), tmp_path)
    again = Device(0)
    assert sized(again, tmp_path) == first
    assert again.launched == []
    other = Device(10_000_000)
    sized(other, tmp_path, max_num_batched_tokens=128)
    assert other.launched


def test_a_step_that_leaves_too_little_is_told_with_measured_numbers(tmp_path: Path) -> None:
    with pytest.raises(DoesNotFit, match=r"activations +47\.21 MiB") as caught:
        sized(Device(24_750_000), tmp_path)
    assert "Use --" in str(caught.value)


def test_a_step_that_finds_no_room_is_told_as_what_does_not_fit(tmp_path: Path) -> None:
    with pytest.raises(DoesNotFit, match="does not fit in memory") as caught:
        sized(Device(0, has_room=False), tmp_path)
    assert caught.value.__suppress_context__
    assert "--max-num-batched-tokens" in str(caught.value)
    retried = Device(10_000_000)
    sized(retried, tmp_path)
    assert retried.launched, "nothing was learnt from a step that did not end"


def test_weights_that_find_no_room_are_told_so_too() -> None:
    memory = MemoryBudget(FULL, kv_layout(FULL), 100_000_000, 4)
    with pytest.raises(DoesNotFit, match="weights"), as_does_not_fit(memory, config()):
        raise torch.OutOfMemoryError("no room")


@pytest.mark.parametrize("name", ["rotated", "windows and caps"])
def test_a_real_engine_is_profiled_and_closed(name: str, tmp_path: Path) -> None:
    arch, device = ARCHS[name], "cuda" if torch.cuda.is_available() else "cpu"
    step = {"max_model_len": 32, "max_num_seqs": 2, "max_num_batched_tokens": 16, "dtype": "float16", "device": device}
    settings = resolve(EngineConfig(**step, kernels="triton"), replace(FACTS, has_cuda=device == "cuda"))
    kernels = choose_kernels(arch, settings)
    torch.set_default_dtype(torch.float16)
    with torch.device(device):
        model = Decoder(arch, kernels.ops, settings.max_model_len).requires_grad_(False)
    torch.set_default_dtype(torch.float32)
    random_weights(model, 0)
    stored: list[weakref.ref[KVStorage]] = []

    def build(num_blocks: int) -> Executor:
        storage = KVStorage(kv_layout(arch), num_blocks, settings.block_size, torch.float16, device, kernels.ops)
        stored.append(weakref.ref(storage))
        return build_executor(kernels, model, storage, settings, None)

    setup = ProfileSetup(build, kernel_launch.compile_only, Device(0), DiskCache("steps", "1", tmp_path), "a device")
    memory = MemoryBudget(arch, kv_layout(arch), 100_000_000, 2)
    assert measured_size(memory, settings, setup, 0, {}).num_requests == settings.max_num_seqs
    assert [reference() for reference in stored] == [None]
