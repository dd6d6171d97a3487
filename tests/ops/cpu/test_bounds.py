"""What exceeds what a program was built for is refused with numbers, and nothing of it is computed."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from torch import Tensor

from archerfish.errors import OutOfBounds
from archerfish.ops.cpu.arguments import step_view
from archerfish.ops.cpu.drafting import DraftPass, NativeDrafting
from archerfish.ops.cpu.limits import LIMIT_NAMES, NativeLimit
from archerfish.ops.cpu.native import NativeOps
from archerfish.ops.cpu.recording import RECORDED_ROWS, CpuProgram, CpuRecording
from archerfish.ops.cpu.step_assembler import StepAssembler
from archerfish.ops.signatures import CHUNK, DRAW_ROW, MAX_TREE_TOKENS, Chunks, ChunkTable, LayerCache
from tests.ops.cpu.native import KERNELS, native, needs_native

pytestmark = needs_native

ROWS, LOGIT_ROWS, CHUNKS = 12, 5, 4
NUM_SEQUENCES, MAX_MODEL_LEN, BLOCK_SIZE, NUM_BLOCKS = 3, 40, 16, 9
VOCABULARY, DIM = 30, 16
BLOCKS_PER_ROW = -(-MAX_MODEL_LEN // BLOCK_SIZE)
MARK = -77.0
"""What outputs hold before a call."""


def chunks_of(*chunks: tuple[int, int, int, int]) -> ChunkTable:
    return np.array([*chunks], CHUNK)


@dataclass
class Bench:
    """A model of one layer whose rows are its hidden states, recorded, with the rows of its sequences."""

    ops: NativeOps = field(default_factory=lambda: native(KERNELS[0]))
    num_groups: int = 1
    block_size: int = BLOCK_SIZE

    def __post_init__(self) -> None:
        self.tokens = np.arange(NUM_SEQUENCES * (MAX_MODEL_LEN + 1), dtype=np.int32).reshape(NUM_SEQUENCES, -1)
        self.tokens %= VOCABULARY
        self.tables = [
            np.arange(NUM_SEQUENCES * BLOCKS_PER_ROW, dtype=np.int32).reshape(NUM_SEQUENCES, -1)
            for _ in range(self.num_groups)
        ]
        size = (NUM_BLOCKS, BLOCK_SIZE, 1, DIM)
        self.cache = LayerCache(torch.full(size, MARK), torch.full(size, MARK))
        self.token_table, self.position_table = torch.randn(VOCABULARY, DIM), torch.randn(MAX_MODEL_LEN, DIM)
        self.program = self._recorded()
        self.room = StepAssembler(
            self.tokens,
            self.tables,
            self.block_size,
            max_tokens=ROWS,
            max_chunks=CHUNKS,
            max_logits=LOGIT_ROWS,
        )
        for rows in self.program.rows:
            rows.fill_(MARK)

    def _recorded(self) -> CpuProgram:
        tokens, positions = (torch.zeros(RECORDED_ROWS, dtype=torch.int64) for _ in range(2))
        slots, ops = torch.zeros(RECORDED_ROWS, dtype=torch.int64), self.ops
        recording = CpuRecording(tokens, positions, (slots,))
        with ops.recording(recording):
            x = ops.add(ops.embed(tokens, self.token_table), ops.embed(positions, self.position_table), 1.0)
            heads = x.view(-1, 1, DIM)
            ops.write_kv(heads, heads, self.cache, slots)
            hidden = ops.attend(heads, self.cache, _no_chunks(slots), 0, 1.0, None, None).flatten(1)
            selected = ops.select(hidden)
        return recording.finish(ROWS, max_logits=LOGIT_ROWS, outputs=(hidden, selected))

    def run(self, chunks: ChunkTable) -> None:
        self.ops.team.run_chunks(self.program.instructions, self.room.set_chunks(chunks))

    def run_trees(self, chunks: ChunkTable, depths: list[int], lines: "np.ndarray") -> None:
        assembly = self.room.set_trees(chunks, np.array(depths), lines.astype(np.uint8))
        self.ops.team.run_chunks(self.program.instructions, assembly)

    def is_untouched(self) -> bool:
        return all(bool((one == MARK).all()) for one in (*self.program.rows, self.cache.keys, self.cache.values))


def _no_chunks(slots: Tensor) -> Chunks:
    empty = torch.zeros(0, dtype=torch.int32)
    none = np.zeros(0, np.int64)
    return Chunks(
        query_starts=empty,
        lengths=empty,
        ends=empty,
        tables=(empty,),
        slots=(slots,),
        host_lengths=none,
        host_ends=none,
    )


def refused(bench: Bench, limit: NativeLimit, given: int, bounds: tuple[int, int], call: Callable[[], None]) -> None:
    with pytest.raises(OutOfBounds) as caught:
        call()
    assert (
        str(caught.value)
        == f"{LIMIT_NAMES[limit]} is {given}, where the kernels were built for {bounds[0]} to {bounds[1]}"
    )
    assert bench.is_untouched()


def test_a_step_as_large_as_the_program_is_run() -> None:
    bench = Bench()
    for stored in bench.cache.tensors:  # Some chunks begin where nothing was computed.
        stored.zero_()
    bench.run(chunks_of((0, 0, 9, 2), (1, 30, 1, 1), (2, MAX_MODEL_LEN - 1, 1, 1), (1, 31, 1, 1)))
    hidden, selected = bench.program.rows
    assert (hidden != MARK).all() and (selected != MARK).all()


@pytest.mark.parametrize(
    ("chunks", "limit", "given", "bounds"),
    [
        ([(0, 0, 1, 1)] * 5, NativeLimit.CHUNKS, 5, (0, 4)),
        ([(0, 0, 13, 1)], NativeLimit.ROWS, 13, (0, 12)),
        ([(0, 0, 6, 1), (1, 0, 7, 1)], NativeLimit.ROWS, 13, (0, 12)),
        ([(0, 0, 6, 6)], NativeLimit.LOGITS, 6, (0, 5)),
        ([(3, 0, 1, 1)], NativeLimit.ROW, 3, (0, 2)),
        ([(-1, 0, 1, 1)], NativeLimit.ROW, -1, (0, 2)),
        ([(0, -1, 1, 1)], NativeLimit.START, -1, (0, 40)),
        ([(0, 2**62, 1, 1)], NativeLimit.START, 2**62, (0, 40)),
        ([(0, 3, 0, 0)], NativeLimit.LENGTH, 0, (1, 41)),
        ([(0, 0, 2**62, 0)], NativeLimit.LENGTH, 2**62, (1, 41)),
        ([(0, 39, 3, 1)], NativeLimit.END, 42, (1, 41)),
        ([(0, 39, 2, 1)], NativeLimit.POSITION, 40, (0, 39)),
        ([(0, 0, 2, 3)], NativeLimit.CHUNK_LOGITS, 3, (0, 2)),
        ([(0, 0, 2, -1)], NativeLimit.CHUNK_LOGITS, -1, (0, 2)),
    ],
)
def test_chunks_that_exceed_the_program_are_refused(
    chunks: list[tuple[int, int, int, int]], limit: NativeLimit, given: int, bounds: tuple[int, int]
) -> None:
    bench = Bench()
    refused(bench, limit, given, bounds, lambda: bench.run(chunks_of(*chunks)))
    bench.run(chunks_of((0, 0, 1, 1)))  # What was refused leaves nothing behind.


@pytest.mark.parametrize("token", [VOCABULARY, -1, 2**31 - 1])
def test_a_token_that_no_table_has_is_refused(token: int) -> None:
    bench = Bench()
    bench.tokens[1, 4] = token
    bench.run(chunks_of((1, 0, 4, 1)))
    for rows in (*bench.program.rows, bench.cache.keys, bench.cache.values):
        rows.fill_(MARK)
    refused(bench, NativeLimit.TOKEN, token, (0, VOCABULARY - 1), lambda: bench.run(chunks_of((1, 3, 2, 1))))


@pytest.mark.parametrize("block", [NUM_BLOCKS, -1])
@pytest.mark.parametrize("place", [0, 1])
def test_a_block_that_the_cache_does_not_have_is_refused(block: int, place: int) -> None:
    """Whether it would be written to or only read."""
    bench = Bench()
    bench.tables[0][0, place] = block
    limit, given, most = NativeLimit.BLOCK, block, NUM_BLOCKS - 1
    if place == 1:  # Where the token itself would be stored.
        limit, given, most = NativeLimit.SLOT, block * BLOCK_SIZE + 4, NUM_BLOCKS * BLOCK_SIZE - 1
    refused(bench, limit, given, (0, most), lambda: bench.run(chunks_of((0, 20, 1, 1))))


def test_other_blocks_and_groups_than_the_caches_are_refused() -> None:
    bench = Bench(block_size=32)
    refused(bench, NativeLimit.BLOCK_SIZE, 32, (16, 16), lambda: bench.run(chunks_of((0, 0, 1, 1))))


def test_trees_are_lines_of_their_own_chunk() -> None:
    """A chunk of three: two draft tokens side by side, each of which follows the first."""
    bench, lines = Bench(), np.tile(np.array([[0], [1], [2]]), MAX_TREE_TOKENS)
    lines[1:, 0] = 0
    chunks = chunks_of((0, 5, 3, 3))

    def refuses(
        limit: NativeLimit, given: int, bounds: tuple[int, int], depths: list[int], lines: "np.ndarray"
    ) -> None:
        refused(bench, limit, given, bounds, lambda: bench.run_trees(chunks, depths, lines))

    refuses(NativeLimit.TREE_DEPTHS, 2, (3, 3), [0, 1], lines[:2])
    refuses(NativeLimit.DEPTH, 3, (0, 2), [0, 1, 3], lines)
    refuses(NativeLimit.DEPTH, -1, (0, 2), [0, 1, -1], lines)
    refuses(NativeLimit.DEPTH, 1, (-1, -1), [-1, 1, 1], lines)
    wrong = lines.copy()
    wrong[2, 40] = 3
    refuses(NativeLimit.TREE_PATH, 3, (0, 2), [0, 1, 1], wrong)
    bench.run_trees(chunks, [0, 1, 1], lines)
    assert not bench.is_untouched()


def test_a_tree_of_more_tokens_than_a_line_can_name_is_refused() -> None:
    bench = Bench()
    depths, lines = [0] * 12, np.zeros((12, MAX_TREE_TOKENS))
    bench.run_trees(chunks_of((0, 0, 12, 1)), depths, lines)
    with pytest.raises(OutOfBounds, match="the number of tokens in a step is 65"):
        bench.run_trees(chunks_of((0, 0, 40, 1), (1, 0, 25, 1)), [0] * 65, np.zeros((65, MAX_TREE_TOKENS)))


def test_steps_that_python_makes_are_checked_like_those_of_chunks() -> None:
    bench = Bench()
    index = torch.arange(ROWS + 1)
    instructions = bench.program.instructions

    def run(count: int, tokens: Tensor, **changes: Tensor) -> None:
        chunks = {
            "query_starts": torch.tensor([0, count], dtype=torch.int32),
            "lengths": torch.tensor([count], dtype=torch.int32),
            "ends": torch.tensor([count], dtype=torch.int32),
            "tables": (torch.zeros(1, 1, dtype=torch.int32),),
            "slots": (torch.arange(count),),
            **changes,
        }
        host = np.array([count])
        step = step_view(count, tokens, index, Chunks(**chunks, host_lengths=host, host_ends=host))
        bench.ops.team.run(instructions, step)

    refused(bench, NativeLimit.ROWS, ROWS + 1, (0, ROWS), lambda: run(ROWS + 1, index))
    refused(bench, NativeLimit.TOKEN, VOCABULARY, (0, VOCABULARY - 1), lambda: run(2, torch.tensor([1, VOCABULARY])))
    far = (torch.tensor([0, NUM_BLOCKS * BLOCK_SIZE]),)
    refused(bench, NativeLimit.SLOT, 144, (0, 143), lambda: run(2, index, slots=far))
    none = (torch.full((1, 1), NUM_BLOCKS, dtype=torch.int32),)
    refused(bench, NativeLimit.BLOCK, NUM_BLOCKS, (0, NUM_BLOCKS - 1), lambda: run(2, index, tables=none))
    refused(bench, NativeLimit.END, 17, (2, 16), lambda: run(2, index, ends=torch.tensor([17], dtype=torch.int32)))
    starts = torch.tensor([0, 3], dtype=torch.int32)
    refused(bench, NativeLimit.LENGTH, 3, (0, 2), lambda: run(2, index, query_starts=starts))
    run(2, index)


def test_operations_that_are_run_at_once_are_checked_too() -> None:
    ops, table = native(KERNELS[0]), torch.randn(5, DIM)
    with pytest.raises(OutOfBounds, match="a token id is 5, where the kernels were built for 0 to 4"):
        ops.embed(torch.tensor([0, 5]), table)
    size = (2, BLOCK_SIZE, 1, DIM)
    cache, heads = LayerCache(torch.zeros(size), torch.zeros(size)), torch.zeros(1, 1, DIM)
    with pytest.raises(OutOfBounds, match="a slot of the KV cache is 32"):
        ops.write_kv(heads, heads, cache, torch.tensor([32]))


# -- drafts -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def drafts() -> Iterator[tuple[Bench, Callable[[ChunkTable, list[int]], None]]]:
    """A bench, and drafts of its rows by states that serve as logits."""
    bench = Bench()
    hidden, selected = bench.program.rows
    of_pass = DraftPass(bench.program, bench.room, hidden, selected, None)
    room = NativeDrafting(of_pass, of_pass, CHUNKS, DIM, None)

    def draft(chunks: ChunkTable, counts: list[int]) -> None:
        room.draft(bench.ops.team, chunks, np.zeros(len(chunks), DRAW_ROW), np.array(counts))

    yield bench, draft


@pytest.mark.parametrize(
    ("chunks", "counts", "limit", "given", "bounds"),
    [
        ([(0, 0, 1, 1)] * 5, [1] * 5, NativeLimit.CHUNKS, 5, (0, 4)),
        ([(0, 0, 3, 1), (1, 0, 3, 1)], [2, 0], NativeLimit.DRAFT_TOKENS, 0, (1, 2)),
        ([(0, 30, 3, 1)], [10], NativeLimit.DRAFT_TOKENS, 10, (1, 9)),
        ([(0, 0, 3, 2)], [1], NativeLimit.CHUNK_LOGITS, 2, (1, 1)),
        ([(0, 0, 13, 1)], [1], NativeLimit.ROWS, 13, (0, 12)),
        ([(0, 40, 2, 1)], [1], NativeLimit.END, 42, (1, 41)),
    ],
)
def test_drafts_that_exceed_their_programs_are_refused(
    drafts: tuple[Bench, Callable[[ChunkTable, list[int]], None]],
    chunks: list[tuple[int, int, int, int]],
    counts: list[int],
    limit: NativeLimit,
    given: int,
    bounds: tuple[int, int],
) -> None:
    bench, draft = drafts
    before = bench.tokens.copy()
    refused(bench, limit, given, bounds, lambda: draft(chunks_of(*chunks), counts))
    assert (bench.tokens == before).all()


def test_a_draft_goes_to_the_end_of_its_rows(
    drafts: tuple[Bench, Callable[[ChunkTable, list[int]], None]],
) -> None:
    bench, draft = drafts
    before = bench.tokens.copy()
    draft(chunks_of((0, 30, 8, 1), (2, 0, 1, 1)), [3, 2])
    changed = np.argwhere(bench.tokens != before).tolist()
    assert set(map(tuple, changed)) <= {(0, 38), (0, 39), (2, 1)}


def test_every_limit_has_words() -> None:
    assert LIMIT_NAMES.keys() == set(NativeLimit) - {NativeLimit.NONE}
