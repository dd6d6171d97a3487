"""An executor that remembers what each slot of the cache was written with, and notices any read of anything else."""

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from archerfish.execution.scripted import ScriptedExecutor, ScriptedStep, num_accepted
from archerfish.kvcache.pool import BlockId
from archerfish.kvcache.tables import Blocks
from archerfish.scheduling.plan import Chunk, Plan, SequenceStart, StepResult

VOCABULARY = 12


def drawn_token(prompt: tuple[int, ...], seed: int, length: int) -> int:
    """The token at place `length`. Siblings, having other seeds, soon differ."""
    return zlib.crc32(repr((prompt, seed, length)).encode()) % VOCABULARY


class Slot(NamedTuple):
    block: BlockId
    offset: int


class Content(NamedTuple):
    """Keys and values of one token in one group of layers: a function of the salt and of every token up to it."""

    group: int
    prefix: int


RUBBISH = Content(-1, 0)


@dataclass
class Row:
    tokens: list[int]
    prompt: tuple[int, ...]
    seed: int
    prefixes: list[int]
    """For each position, a hash of everything up to it."""
    tables: list[list[BlockId | None]]
    computed: int
    failed: bool = False
    """Nothing that is computed on it any more means anything."""

    def append(self, token: int) -> None:
        self.tokens.append(token)
        self.prefixes.append(hash((self.prefixes[-1], token)))


@dataclass
class AuditedStep:
    """A step in flight, and the blocks that it reads and writes."""

    scripted: ScriptedStep
    outcome: StepResult
    in_flight: "list[AuditedStep]"
    blocks: set[BlockId] = field(default_factory=set)

    def result(self) -> StepResult:
        self.scripted.result()
        self.in_flight.remove(self)
        return self.outcome


class AuditingExecutor:
    """Runs a plan as a real executor does: starts, new blocks, copies, then all writes, then all reads."""

    def __init__(
        self,
        block_size: int,
        windows: tuple[int | None, ...],
        salts: Mapping[int, str],
        most_drawn: int = 1,
        max_in_flight: int = 1,
        num_draft_tokens: int = 0,
    ) -> None:
        self._block_size = block_size
        self._windows = windows
        self._salts = salts
        """By a sequence's seed."""
        self._most_drawn = most_drawn
        """Tokens that a chunk draws at most; how many differs from step to step."""
        self._rows: dict[int, Row] = {}
        self._slots: dict[Slot, Content] = {}
        self._scripted = ScriptedExecutor(
            block_size=block_size, max_in_flight=max_in_flight, max_draft_tokens=num_draft_tokens
        )
        self.max_draft_tokens = self._scripted.max_draft_tokens
        self._in_flight: list[AuditedStep] = []
        self.num_copies = 0

    def launch(self, plan: Plan, failures: Mapping[int, str] | None = None) -> AuditedStep:
        """Chunks named in failures leave rubbish in the cache."""
        failures = failures or {}
        step = AuditedStep(self._scripted.launch(plan), StepResult([]), self._in_flight)
        self._check_new_blocks(plan)
        for start in plan.starts:
            self._start(start)
        for chunk in plan.chunks:
            self._append_blocks(self._rows[chunk.row].tables, chunk.new_blocks)
        for copy in plan.copies:
            step.blocks |= {copy.source, copy.target}
            for offset in range(self._block_size):
                self._slots.pop(Slot(copy.target, offset), None)
                if (content := self._slots.get(Slot(copy.source, offset))) is not None:
                    self._slots[Slot(copy.target, offset)] = content
        self.num_copies += len(plan.copies)
        for place in failures:
            self._rows[plan.chunks[place].row].failed = True
        step.blocks |= self._write(plan)
        for chunk in plan.chunks:
            step.blocks |= self._read(chunk)
        step.outcome = StepResult(
            [self._draw(chunk) for chunk in plan.chunks],
            failures=dict(failures),
            max_draft_tokens=self.max_draft_tokens,
        )
        self._in_flight.append(step)
        return step

    def _check_new_blocks(self, plan: Plan) -> None:
        """Blocks that are handed out are not read or written by a step in flight."""
        new = {block for chunk in plan.chunks for blocks in chunk.new_blocks for block in blocks}
        new |= {copy.target for copy in plan.copies}
        for step in self._in_flight:
            assert not new & step.blocks, "a step in flight uses a block that was given to another"

    def _start(self, start: SequenceStart) -> None:
        prefixes = [zlib.crc32(self._salts[start.seed].encode())]
        for token in start.tokens:
            prefixes.append(hash((prefixes[-1], token)))
        prompt = start.tokens[: start.num_prompt_tokens]
        tables = [list(blocks) for blocks in start.blocks]
        assert len({len(blocks) for blocks in tables}) == 1, "tables of a sequence grow together"
        self._rows[start.row] = Row(list(start.tokens), prompt, start.seed, prefixes, tables, -1)

    def _append_blocks(self, tables: list[list[BlockId | None]], new: Blocks) -> None:
        for blocks, added in zip(tables, new, strict=bool(new)):
            blocks.extend(added)

    def _slot(self, row: Row, group: int, position: int) -> Slot:
        block = row.tables[group][position // self._block_size]
        assert block is not None, "a block that is needed was given away"
        return Slot(block, position % self._block_size)

    def _write(self, plan: Plan) -> set[BlockId]:
        written: set[Slot] = set()
        for chunk in plan.chunks:
            row = self._rows[chunk.row]
            assert row.computed in (-1, chunk.start), "a chunk must continue where the last one ended"
            end = chunk.start + chunk.length
            row.computed = end + num_accepted(chunk)
            prefixes = row.prefixes[: end + 1] + self._accepted_prefixes(row, chunk)
            for group in range(len(self._windows)):
                for position in range(chunk.start, end + chunk.max_draft_tokens):
                    slot = self._slot(row, group, position)
                    assert slot not in written, "two sequences write to one slot"
                    written.add(slot)
                    is_rubbish = row.failed or position >= row.computed
                    self._slots[slot] = RUBBISH if is_rubbish else Content(group, prefixes[position + 1])
        return {slot.block for slot in written}

    def _accepted_prefixes(self, row: Row, chunk: Chunk) -> list[int]:
        """Return the prefixes up to each draft token after the chunk that is accepted."""
        prefix, found = row.prefixes[-1], []
        for length in range(len(row.tokens), len(row.tokens) + num_accepted(chunk)):
            prefix = hash((prefix, drawn_token(row.prompt, row.seed, length)))
            found.append(prefix)
        return found

    def _read(self, chunk: Chunk) -> set[BlockId]:
        row = self._rows[chunk.row]
        read: set[BlockId] = set()
        for group, window in enumerate(self._windows):
            first = 0 if window is None else max(0, chunk.start - window + 1)
            for position in range(first, chunk.start + chunk.length):
                slot = self._slot(row, group, position)
                read.add(slot.block)
                expected = Content(group, row.prefixes[position + 1])
                assert row.failed or self._slots.get(slot) == expected, "a sequence reads another's keys"
        return read

    def _draw(self, chunk: Chunk) -> list[int]:
        row = self._rows[chunk.row]
        assert chunk.samples == (chunk.start + chunk.length == len(row.tokens)), "draw at the end, and only there"
        if not chunk.samples:
            return []
        num_drawn = zlib.crc32(repr((row.seed, len(row.tokens))).encode()) % self._most_drawn + 1 + num_accepted(chunk)
        for _ in range(num_drawn):
            row.append(drawn_token(row.prompt, row.seed, len(row.tokens)))
        return row.tokens[-num_drawn:]
