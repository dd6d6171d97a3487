"""Heads that guess, by native operations: packed like a model, recorded once, and true to the plain ones."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from archerfish.arch import EagleSpec
from archerfish.execution.step.inputs import no_chunks
from archerfish.kvcache.layout import kv_layout
from archerfish.kvcache.storage import KVStorage
from archerfish.models.attention import plain_attention
from archerfish.models.eagle import Eagle
from archerfish.models.layers import Embedding, Linear
from archerfish.models.medusa import Medusa
from archerfish.ops import Chunks, KernelTarget, Ops, choose_ops, implementations
from archerfish.ops.cpu.arguments import step_view
from archerfish.ops.cpu.native import NativeOps
from archerfish.ops.cpu.program import Format
from archerfish.ops.cpu.recording import RECORDED_ROWS, CpuRecording
from archerfish.ops.packed import PackedWeight
from archerfish.quant import WeightFormat
from archerfish.weights.heads import choose_tokens, load_head, save_head
from archerfish.weights.packing import Packer
from tests.models.heads import EAGLE, LAYER, LENGTH, MEDUSA, OPS, eagle, filled, medusa, target_head
from tests.ops.cpu.native import KERNELS, native, needs_native

pytestmark = needs_native

BLOCK_SIZE, NUM_BLOCKS, NUM_ROWS = 16, 8, 37
TARGET = KernelTarget(device="cpu", dtype="bfloat16", head_dim=16, block_size=BLOCK_SIZE, threads=2)
PRECISE = (torch.float32, WeightFormat(name="none"), 1e-5)
FORMATS = [
    PRECISE,
    (torch.bfloat16, WeightFormat(name="none"), 0.03),
    (torch.bfloat16, WeightFormat(name="int8"), 0.05),
]
"""Of weights, how they are packed, and how far off a root mean square may be."""
EAGLES: dict[str, dict[str, Any]] = {
    "as published": {},
    "normalized residual": {"norm_before_residual": True},
    "own table": {"has_embedding": True, "vocab_size": 61},
    "biases": {"layer": replace(LAYER, attention=replace(LAYER.attention, qkv_bias=True, output_bias=True))},
}


def native_ops() -> tuple[NativeOps, Ops]:
    team = native(KERNELS[0])
    return team, choose_ops(TARGET, implementations(team)).ops


def on_meta(make: Callable[[], Any], dtype: torch.dtype) -> Any:
    """As a model is made that has yet to be loaded: rotations stay float32."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device("meta"):
            return make().requires_grad_(False)
    finally:
        torch.set_default_dtype(before)


def near(found: Tensor, wanted: Tensor, most: float) -> None:
    assert found.shape == wanted.shape and wanted.std() > 0.1
    assert (found - wanted).square().mean().sqrt() < most * wanted.std()


@dataclass
class RecordedEagle:
    """Its two programs, and a cache for one sequence whose blocks lie scattered."""

    head: Eagle
    native: NativeOps
    ops: Ops

    def __post_init__(self) -> None:
        layout = kv_layout(self.head.spec.arch)
        storage = KVStorage(layout, NUM_BLOCKS, BLOCK_SIZE, torch.float32, "cpu", self.ops)
        self.table = torch.tensor([[5, 2, 7]], dtype=torch.int32)
        chunks, attention = no_chunks(1), self.head.spec.layer.attention
        tokens, positions = (torch.zeros(RECORDED_ROWS, dtype=torch.int64) for _ in range(2))
        states = torch.empty(RECORDED_ROWS, self.head.spec.hidden_size)

        def attend(layer: int, q: Tensor, k: Tensor | None, v: Tensor | None) -> Tensor:
            assert k is not None and v is not None
            storage.write(layer, k, v, chunks)
            return storage.attend(layer, q, chunks, attention.scale, attention.window, attention.softcap)

        recording = CpuRecording(tokens, positions, chunks.slots)
        with self.native.recording(recording), torch.inference_mode():
            given = self.head(tokens, positions, states, attend)
            logits = self.head.logits(given)
        self.forward = recording.finish(NUM_ROWS, inputs=(states,), outputs=(given, logits))
        taps = torch.empty(RECORDED_ROWS, self.head.joining.weight.shape[1])
        recording = CpuRecording()
        with self.native.recording(recording), torch.inference_mode():
            joined = self.head.joined(taps)
        self.joining = recording.finish(NUM_ROWS, inputs=(taps,), outputs=(joined,))

    def joined(self, taps: Tensor) -> Tensor:
        room, joined = self.joining.rows
        room[: len(taps)] = taps
        self.native.team.run(self.joining.instructions, step_view(len(taps), None, None, None))
        return joined[: len(taps)].clone()

    def run(self, start: int, tokens: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
        """States and logits of tokens that follow one another."""
        length = len(tokens)
        room, given, logits = self.forward.rows
        room[:length] = states
        positions = torch.arange(start, start + length)
        slots = self.table[0].long()[positions // BLOCK_SIZE] * BLOCK_SIZE + positions % BLOCK_SIZE
        ends = np.array([start + length])
        chunks = Chunks(
            query_starts=torch.tensor([0, length], dtype=torch.int32),
            lengths=torch.tensor([length], dtype=torch.int32),
            ends=torch.tensor([start + length], dtype=torch.int32),
            tables=(self.table,),
            slots=(slots,),
            host_lengths=np.array([length]),
            host_ends=ends,
        )
        self.native.team.run(self.forward.instructions, step_view(length, tokens, positions, chunks))
        return given[:length].clone(), logits[:length].clone()


def native_table(table: Tensor, dtype: torch.dtype, ops: Ops) -> Embedding:
    made = Embedding(*table.shape, ops)
    made.weight = torch.nn.Parameter(table.to(dtype), requires_grad=False)
    return made


def packed_eagle(
    spec: EagleSpec, table: Tensor, directory: Path, dtype: torch.dtype, how: WeightFormat
) -> RecordedEagle:
    """From its files, with the table of a target that was packed before it."""
    team, ops = native_ops()
    borrowed = None if spec.has_embedding else native_table(table, dtype, ops)
    head = on_meta(lambda: Eagle(spec, borrowed, ops, LENGTH), dtype)
    load_head(head, directory, Packer(head, how))
    return RecordedEagle(head, team, ops)


def inputs(spec: EagleSpec) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    tokens = torch.randint(spec.target_vocab_size, (NUM_ROWS,), generator=generator)
    width = len(spec.target_layers) * spec.target_hidden_size
    return tokens, torch.randn(NUM_ROWS, width, generator=generator)


def both(kind: dict[str, Any], directory: Path, dtype: torch.dtype, how: WeightFormat) -> tuple[Eagle, RecordedEagle]:
    table = filled(Embedding(61, 32, OPS), 1)
    plain = eagle(table=None if kind.get("has_embedding") else table, **kind).requires_grad_(False)
    save_head(plain, directory, "somebody/model", {})
    return plain, packed_eagle(plain.spec, table.weight.detach(), directory, dtype, how)


@pytest.mark.parametrize("kind", EAGLES)
@pytest.mark.parametrize(("dtype", "how", "most"), FORMATS, ids=["float32", "bfloat16", "int8"])
def test_a_recorded_eagle_gives_the_plain_ones_logits(
    tmp_path: Path, kind: str, dtype: torch.dtype, how: WeightFormat, most: float
) -> None:
    plain, recorded = both(EAGLES[kind], tmp_path, dtype, how)
    tokens, taps = inputs(plain.spec)
    states = plain.joined(taps)
    near(recorded.joined(taps), states, most)
    spec = plain.spec.layer.attention
    attend = lambda layer, q, k, v: plain_attention(q, k, v, spec)  # noqa: E731
    wanted = plain(tokens, torch.arange(NUM_ROWS), states, attend)
    given, logits = recorded.run(0, tokens, states)
    near(given, wanted, most)
    near(logits, plain.logits(wanted), most)


@pytest.mark.parametrize("kind", EAGLES)
@pytest.mark.parametrize(("dtype", "how"), [one[:2] for one in FORMATS], ids=["float32", "bfloat16", "int8"])
def test_a_row_has_the_same_bits_however_rows_are_cut(
    tmp_path: Path, kind: str, dtype: torch.dtype, how: WeightFormat
) -> None:
    _, recorded = both(EAGLES[kind], tmp_path, dtype, how)
    tokens, taps = inputs(recorded.head.spec)
    states = recorded.joined(taps)
    given, logits = recorded.run(0, tokens, states)
    for first, last in ((0, 20), (20, 21), (21, 36), (36, 37)):
        part = slice(first, last)
        assert torch.equal(recorded.joined(taps[part]), states[part])
        again, scored = recorded.run(first, tokens[part], states[part])
        assert torch.equal(again, given[part]) and torch.equal(scored, logits[part])


def test_a_norm_of_all_queries_at_once_is_not_taken_for_one_of_the_row_they_are_part_of() -> None:
    team, ops = native_ops()
    spec = replace(EAGLE, layer=replace(LAYER, attention=replace(LAYER.attention, qk_norm="width")))
    table = filled(Embedding(61, 32, OPS), 1)
    plain = eagle(spec, table).requires_grad_(False)
    borrowed = native_table(table.weight.detach(), torch.float32, ops)
    head = on_meta(lambda: Eagle(spec, borrowed, ops, LENGTH), torch.float32)
    packer = Packer(head, WeightFormat(name="none"))
    for name, parameter in plain.named_parameters():
        packer(name, parameter.detach())
    tokens, taps = inputs(spec)
    states = plain.joined(taps)
    attend = lambda layer, q, k, v: plain_attention(q, k, v, spec.layer.attention)  # noqa: E731
    wanted = plain(tokens, torch.arange(NUM_ROWS), states, attend)
    near(RecordedEagle(head, team, ops).run(0, tokens, states)[0], wanted, 1e-5)


# -- Medusa -----------------------------------------------------------------------------------------------------------


def packed_head(plain: Linear, dtype: torch.dtype, how: WeightFormat, ops: Ops) -> Linear:
    """The target's, as it is when its weights are loaded."""
    head = Linear(32, 61, plain.bias is not None, ops).requires_grad_(False)
    del head.weight
    head.weight = how.of_vocabulary.pack(plain.weight.detach().to(dtype))  # type: ignore[assignment]
    head.bias = plain.bias
    return head


@pytest.mark.parametrize("num_tokens", [61, 23])
@pytest.mark.parametrize("whose", ["own", "target's"])
@pytest.mark.parametrize(("dtype", "how", "most"), FORMATS, ids=["float32", "bfloat16", "int8"])
def test_a_recorded_medusa_gives_the_plain_ones_logits(
    tmp_path: Path, num_tokens: int, whose: str, dtype: torch.dtype, how: WeightFormat, most: float
) -> None:
    team, ops = native_ops()
    served = None if whose == "own" else target_head(bias=True).requires_grad_(False)
    plain = medusa(served, vocab_size=num_tokens).requires_grad_(False)
    if plain.target_ids is not None:
        choose_tokens(plain, torch.arange(60, 60 - 2 * num_tokens, -2))
    save_head(plain, tmp_path, "somebody/model", {})
    borrowed = None if served is None else packed_head(served, dtype, how, ops)
    head = on_meta(lambda: Medusa(plain.spec, borrowed, ops), dtype)
    load_head(head, tmp_path, Packer(head, how))
    recording, states = CpuRecording(), torch.empty(RECORDED_ROWS, 32)
    with team.recording(recording), torch.inference_mode():
        scored = tuple(head.logits(number, x) for number, x in enumerate(head(states)))
    program = recording.finish(NUM_ROWS, inputs=(states,), outputs=scored)
    x = torch.randn(NUM_ROWS, 32, generator=torch.Generator().manual_seed(8))
    program.rows[0][:] = x
    team.team.run(program.instructions, step_view(NUM_ROWS, None, None, None))
    for number, wanted in enumerate(plain(x)):
        near(program.rows[1 + number], plain.logits(number, wanted), most)


def packed_weights(module: torch.nn.Module) -> list[PackedWeight]:
    return [one for part in module.modules() for one in vars(part).values() if isinstance(one, PackedWeight)]


def test_what_is_the_targets_is_packed_once() -> None:
    _, ops = native_ops()
    how = WeightFormat(name="int8")
    target = packed_head(target_head(), torch.bfloat16, how, ops)
    before = target.weight
    head = on_meta(lambda: Medusa(replace(MEDUSA, has_own_head=False), target, ops), torch.bfloat16)
    packer = Packer(head, how)
    for name, parameter in medusa(target_head()).named_parameters():
        packer(name, parameter.detach())
    assert target.weight is before and len(packed_weights(head)) == MEDUSA.num_heads * MEDUSA.num_layers


@pytest.mark.parametrize(("dtype", "how"), [one[:2] for one in FORMATS], ids=["float32", "bfloat16", "int8"])
def test_rows_of_a_packed_head_are_packed_as_those_of_a_plain_one(dtype: torch.dtype, how: WeightFormat) -> None:
    _, ops = native_ops()
    plain, ids = target_head(), torch.arange(60, 14, -2)
    target = packed_head(plain, dtype, how, ops)
    spec = replace(MEDUSA, has_own_head=False, vocab_size=23)
    head = on_meta(lambda: Medusa(spec, target, ops), dtype)
    choose_tokens(head, ids, Packer(head, how))
    assert head.rows is not None
    found: Any = head.rows.linear.weight
    wanted = how.of_vocabulary.pack(plain.weight.detach().to(dtype)[ids])
    assert found.format == wanted.format and torch.equal(found.data, wanted.data)
    if found.format == Format.INT8:
        torch.testing.assert_close(found.scales, wanted.scales, rtol=1e-2, atol=0.0)
