"""A model recorded once as native programs and replayed for every step: no Python between two operations."""

import torch
from torch import Tensor

from archerfish.arch.arch import Arch
from archerfish.execution.memory import LOGIT_ROWS_AT_ONCE
from archerfish.execution.step.inputs import Outline, no_chunks
from archerfish.execution.step.model import Most, Passed
from archerfish.execution.step.rows import Rows
from archerfish.kvcache.storage import KVStorage
from archerfish.models.decoder import Decoder
from archerfish.models.eagle import Eagle
from archerfish.models.medusa import Medusa
from archerfish.ops.arrays import Ints
from archerfish.ops.cpu.assembly import StepRoom
from archerfish.ops.cpu.drafting import Drafted, DraftPass, DraftRoom
from archerfish.ops.cpu.native import NativeOps, make_step
from archerfish.ops.cpu.recording import RECORDED_ROWS, Program, Recording
from archerfish.ops.signatures import DrawRows


class RecordedPass:
    """One pass of a network over chunks of rows, recorded."""

    def __init__(self, program: Program, native: NativeOps, most: Most, num_inputs: int = 0) -> None:
        self.team = native.team
        self.most = most
        self._program = program
        self._num_inputs = num_inputs
        self._room: StepRoom | None = None
        """Of the rows that it is run with, which are the same every time."""

    def run(self, outline: Outline, rows: Rows, *inputs: Tensor) -> Passed:
        """With further inputs [T, width] beside the tokens, where the network has any. Good until the next pass."""
        room, trees = self._room_of(rows), outline.trees
        if trees is None:
            assembly = room.take(outline.chunks)
        else:
            assembly = room.take_trees(outline.chunks, trees.depths, trees.paths)
        self.give(inputs)
        num_rows = self.team.run_chunks(self._program.instructions, assembly)
        hidden, logits, *taps = self._program.rows[self._num_inputs :]
        tapped = tuple(tap[:num_rows] for tap in taps)
        return Passed(hidden[:num_rows], logits[: len(outline.sampling)], tapped)

    def give(self, inputs: tuple[Tensor, ...]) -> None:
        """What the next pass takes beside tokens."""
        for place, value in zip(self._program.rows[: self._num_inputs], inputs, strict=True):
            place[: len(value)] = value

    def for_drafts(self, rows: Rows) -> DraftPass:
        """Of a network whose states it may take in turn, with one input at most."""
        *given, hidden, logits = self._program.rows[: self._num_inputs + 2]
        return DraftPass(self._program, self._room_of(rows), hidden, logits, given[0] if given else None)

    def _room_of(self, rows: Rows) -> StepRoom:
        if self._room is None:
            self._room = StepRoom(
                rows.tokens,
                rows.tables,
                rows.block_size,
                max_tokens=self.most.rows,
                max_chunks=self.most.chunks,
                max_picked=self.most.picked,
            )
        return self._room


class RecordedDrafts:
    """Whole drafts in one call: a pass over what is new, then one over guess after guess."""

    def __init__(
        self,
        first: RecordedPass,
        further: RecordedPass,
        rows: Rows,
        vocab_size: int,
        target_ids: Tensor | None = None,
    ) -> None:
        """`further` takes what either made of a row's last token, if it takes anything."""
        assert vocab_size <= NativeOps.MOST_TOKENS, f"a vocabulary of {vocab_size} is more than there is room for"
        self._first = first
        max_rows = min(first.most.chunks, first.most.picked)
        self._room = DraftRoom(first.for_drafts(rows), further.for_drafts(rows), max_rows, vocab_size, target_ids)

    def __call__(self, outline: Outline, asked: DrawRows, counts: Ints, *given: Tensor) -> Drafted:
        self._first.give(given)
        return self._room.draft(self._first.team, outline.chunks, asked, counts)


class RecordedModel:
    """Two programs: from tokens to hidden states and the logits of some, and from hidden states to logits."""

    def __init__(
        self, model: Decoder, storage: KVStorage, native: NativeOps, most: Most, taps: tuple[int, ...] = ()
    ) -> None:
        """Taps are the layers whose input is told of."""
        self.arch: Arch = model.arch
        self._team = native.team
        self._forward = RecordedPass(_record_forward(model, storage, native, most, taps), native, most)
        self._logits = _record_logits(model, native, LOGIT_ROWS_AT_ONCE)

    def run(self, outline: Outline, rows: Rows) -> Passed:
        """Good until the next step."""
        return self._forward.run(outline, rows)

    def drafts(self, rows: Rows) -> RecordedDrafts:
        """For rows that it guesses the next tokens of: the only ones it is run with."""
        return RecordedDrafts(self._forward, self._forward, rows, self.arch.vocab_size)

    def logits(self, states: Tensor) -> Tensor:
        """[rows, vocabulary], good until they are asked for again."""
        room, logits = self._logits.rows
        num_rows = len(states)
        room[:num_rows] = states
        self._team.run(self._logits.instructions, make_step(num_rows, None, None, None))
        return logits[:num_rows]

    def close(self) -> None:
        self._team.close()


def _record_forward(
    model: Decoder, storage: KVStorage, native: NativeOps, most: Most, taps: tuple[int, ...]
) -> Program:
    tokens, positions = (torch.zeros(RECORDED_ROWS, dtype=torch.int64) for _ in range(2))
    chunks = no_chunks(len(storage.layout.windows))
    recording = Recording(tokens, positions, chunks.slots)
    heard: dict[int, Tensor] = {}
    with native.recording(recording), torch.inference_mode():
        hidden = model(tokens, positions, storage.attending(model.arch, chunks), heard.__setitem__)
        logits = model.logits(native.select(hidden))
    return recording.finish(
        most.rows, max_picked=most.picked, outputs=(hidden, logits, *(heard[layer] for layer in taps))
    )


def record_eagle(eagle: Eagle, storage: KVStorage, native: NativeOps, most: Most, *, joins: bool) -> RecordedPass:
    """A pass of a head over tokens and states; or, if it joins them, over tokens and what the target's taps gave."""
    tokens, positions = (torch.zeros(RECORDED_ROWS, dtype=torch.int64) for _ in range(2))
    chunks, spec = no_chunks(1), eagle.spec
    width = len(spec.target_layers) * spec.target_hidden_size if joins else spec.hidden_size
    given = torch.empty(RECORDED_ROWS, width)
    recording = Recording(tokens, positions, chunks.slots)
    with native.recording(recording), torch.inference_mode():
        states = eagle.joined(given) if joins else given
        hidden = eagle(tokens, positions, states, storage.attending(spec.arch, chunks))
        logits = eagle.logits(native.select(hidden))
    program = recording.finish(most.rows, max_picked=most.picked, inputs=(given,), outputs=(hidden, logits))
    return RecordedPass(program, native, most, num_inputs=1)


class RecordedMedusa:
    """All heads at once, from states to logits."""

    def __init__(self, medusa: Medusa, native: NativeOps, max_rows: int) -> None:
        recording = Recording()
        states = torch.empty(RECORDED_ROWS, medusa.spec.hidden_size)
        with native.recording(recording), torch.inference_mode():
            logits = tuple(medusa.logits(number, x) for number, x in enumerate(medusa(states)))
        self._program = recording.finish(max_rows, inputs=(states,), outputs=logits)
        self._team = native.team

    def __call__(self, states: Tensor) -> list[Tensor]:
        """[rows, hidden] -> for each head [rows, tokens it can guess]. Good until the next call."""
        room, *logits = self._program.rows
        num_rows = len(states)
        room[:num_rows] = states
        self._team.run(self._program.instructions, make_step(num_rows, None, None, None))
        return [of_head[:num_rows] for of_head in logits]


def _record_logits(model: Decoder, native: NativeOps, max_rows: int) -> Program:
    recording = Recording()
    states = torch.empty(RECORDED_ROWS, model.arch.hidden_size)
    with native.recording(recording), torch.inference_mode():
        logits = model.logits(states)
    return recording.finish(max_rows, inputs=(states,), outputs=(logits,))
