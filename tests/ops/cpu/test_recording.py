"""Recorded programs: operations joined where they can be, with the bits of operations run one by one."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor

from archerfish.ops.cpu.arguments import step_view
from archerfish.ops.cpu.native import NativeOps
from archerfish.ops.cpu.program import Operation
from archerfish.ops.cpu.recording import RECORDED_ROWS, CpuProgram, CpuRecording
from archerfish.ops.signatures import Chunks, LayerCache
from tests.ops.cpu.native import every_kernel, native, needs_native

pytestmark = needs_native

HEADS, KV_HEADS, DIM, MOST_ROWS = 4, 2, 32, 40
QUERIES, KEYS = HEADS * DIM, KV_HEADS * DIM
WIDTH = QUERIES + 2 * KEYS


@dataclass(frozen=True)
class Layer:
    """Attention of one layer: rows of queries, keys and values side by side in, what was attended to out."""

    ops: NativeOps
    table: Tensor | None
    """[positions, R] angles, if it rotates."""
    norm: Tensor | None
    cache: LayerCache

    def run(self, qkv: Tensor, positions: Tensor, chunks: Chunks) -> tuple[Tensor, Tensor]:
        """What was attended to, and the rotated keys."""
        q = qkv[:, :QUERIES].view(-1, HEADS, DIM)
        k = qkv[:, QUERIES:-KEYS].view(-1, KV_HEADS, DIM)
        if self.norm is not None:
            q, k = (self.ops.rms_norm(one, self.norm, 1e-6, 0.0) for one in (q, k))
        if self.table is not None:
            angles = self.ops.embed(positions, self.table)
            q, k = (self.ops.rotate(one, angles) for one in (q, k))
        self.ops.write_kv(k, qkv[:, -KEYS:].view(-1, KV_HEADS, DIM), self.cache, chunks.slots[0])
        return self.ops.attend(q, self.cache, chunks, 0, DIM**-0.5, None, None).flatten(1), k.flatten(1)


def made(kernels: str, turning: int, normed: bool, dtype: torch.dtype = torch.bfloat16) -> Layer:
    size = (4, 16, KV_HEADS, DIM)
    cache = LayerCache(*(torch.zeros(size, dtype=dtype) for _ in range(2)))
    if dtype == torch.int8:
        cache = LayerCache(cache.keys, cache.values, *(torch.zeros(size[:-1]) for _ in range(2)))
    table = noise(1, MOST_ROWS, turning) if turning else None
    return Layer(native(kernels), table, noise(2, DIM) if normed else None, cache)


def noise(seed: int, *shape: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape)).float()


def whole(length: int) -> Chunks:
    """One chunk from position 0 on, in blocks 2, 0, 3."""
    blocks = [2, 0, 3]
    slots = [blocks[position // 16] * 16 + position % 16 for position in range(length)]
    return Chunks(
        query_starts=torch.tensor([0, length], dtype=torch.int32),
        lengths=torch.tensor([length], dtype=torch.int32),
        ends=torch.tensor([length], dtype=torch.int32),
        tables=(torch.tensor([blocks], dtype=torch.int32),),
        slots=(torch.tensor(slots, dtype=torch.int64),),
        host_lengths=np.array([length]),
        host_ends=np.array([length]),
    )


def recorded(layer: Layer, outputs: Callable[[tuple[Tensor, Tensor]], tuple[Tensor, ...]]) -> CpuProgram:
    positions, chunks = torch.zeros(RECORDED_ROWS, dtype=torch.int64), whole(RECORDED_ROWS)
    qkv = torch.empty(RECORDED_ROWS, WIDTH)
    recording = CpuRecording(positions=positions, slots=chunks.slots)
    with layer.ops.recording(recording):
        shown = outputs(layer.run(qkv, positions, chunks))
    return recording.finish(MOST_ROWS, inputs=(qkv,), outputs=shown)


def replayed(layer: Layer, program: CpuProgram, qkv: Tensor) -> tuple[Tensor, ...]:
    program.rows[0][: len(qkv)] = qkv
    positions, chunks = torch.arange(len(qkv)), whole(len(qkv))
    layer.ops.team.run(program.instructions, step_view(len(qkv), None, positions, chunks))
    return tuple(rows[: len(qkv)] for rows in program.rows[1:])


def operations(program: CpuProgram) -> list[Operation]:
    return [Operation(instruction.operation) for instruction in program.instructions]


@every_kernel
@pytest.mark.parametrize("turning", [DIM, 24, 6, 0])
@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8])
def test_rotation_is_part_of_storing_and_attending(
    kernels: str, turning: int, normed: bool, dtype: torch.dtype
) -> None:
    one_by_one, joined = (made(kernels, turning, normed, dtype) for _ in range(2))
    qkv = noise(3, 37, WIDTH)
    wanted, _ = one_by_one.run(qkv, torch.arange(37), whole(37))
    program = recorded(joined, lambda computed: computed[:1])
    assert Operation.ROTATE not in operations(program)
    assert torch.equal(replayed(joined, program, qkv)[0], wanted)
    for found, stored in zip(joined.cache.tensors, one_by_one.cache.tensors, strict=True):
        assert torch.equal(found, stored)


@every_kernel
def test_keys_that_another_operation_reads_rotated_are_rotated_separately(kernels: str) -> None:
    qkv = noise(3, 20, WIDTH)
    wanted, keys = made(kernels, DIM, False).run(qkv, torch.arange(20), whole(20))
    shown, added = made(kernels, DIM, False), made(kernels, DIM, False)
    program = recorded(shown, lambda computed: computed)
    assert operations(program).count(Operation.ROTATE) == 1
    found = replayed(shown, program, qkv)
    assert torch.equal(found[0], wanted)
    assert torch.equal(found[1], keys)
    program = recorded(
        added, lambda computed: (computed[0], added.ops.add(computed[1][:, 16:], computed[1][:, :-16], 1.0))
    )
    assert operations(program).count(Operation.ROTATE) == 1
    found = replayed(added, program, qkv)
    assert torch.equal(found[0], wanted)
    assert torch.equal(found[1], keys[:, 16:] + keys[:, :-16])
