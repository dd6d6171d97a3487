"""Tells a device what a step consists of: its tokens' places, the work of attention, how tokens are drawn, what is new.

Everything has its place on the device, the same for all steps of one shape, so that captured kernels find it there.
"""

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from archerfish.arch.arch import Arch
from archerfish.execution.backends.cuda.device_rows import DeviceRows
from archerfish.execution.backends.cuda.staging import Staging
from archerfish.execution.step.inputs import Outline
from archerfish.execution.step.trees import StepTrees
from archerfish.ops.arrays import Ints
from archerfish.ops.signatures import DRAW_ROW, MOST_TREE_TOKENS, DrawRows
from archerfish.ops.triton.attention import (
    UNIT_FIELDS,
    AttentionScratch,
    ChunkColumns,
    HeadShape,
    Lines,
    UnitList,
    Units,
    Work,
    attention_units,
    most_units,
    num_processors,
)
from archerfish.ops.triton.graph import scatter
from archerfish.ops.triton.operations import DeviceStep

_MOST_NEWS = 4096
"""Places in rows that a step can be told of as part of it; more are told beforehand."""
_MOST_PARTIALS = 4096
"""Room for what units of attention leave to each other."""
_RECORD_WORDS = DRAW_ROW.itemsize // 4
_PATH_WORDS = MOST_TREE_TOKENS // 4
_NO_ROW = -1

Words = np.ndarray[tuple[int], np.dtype[np.int32]]


class StepSize(NamedTuple):
    """Tokens of a step and those among them that are picked, filled up."""

    num_tokens: int
    num_picked: int


class Places(NamedTuple):
    """Where the words of a step of some size begin."""

    counts: int
    records: int
    rows: int
    positions: int
    places: int
    depths: int
    paths: int
    picked: int
    drawn_rows: int
    drawn_positions: int
    news: int

    @classmethod
    def of(cls, size: StepSize, num_windows: int, *, has_trees: bool) -> "Places":
        # Records have 64-bit fields: all that comes before them is an even number of words.
        lined = size.num_tokens if has_trees else 0
        lengths = (
            *(2 + 2 * num_windows, size.num_picked * _RECORD_WORDS, size.num_tokens, size.num_tokens),
            *(lined, lined, lined * _PATH_WORDS),
            *(size.num_picked, size.num_picked, size.num_picked),
        )
        return cls(0, *np.cumsum(lengths).tolist())


class Told(NamedTuple):
    """A step's words on the device."""

    num_news: Tensor
    news: Tensor
    records: Tensor
    """[picked, words of a record] int32."""
    rows: Tensor
    positions: Tensor
    """In the text."""
    places: Tensor
    """In their rows: the same, but for trees."""
    lines: Lines | None
    picked: Tensor
    drawn_rows: Tensor
    drawn_positions: Tensor


class StepRoom:
    """Room on the device for what any step can be told."""

    def __init__(self, arch: Arch, most: StepSize, rows: DeviceRows, device: str) -> None:
        attention = arch.layers[0].attention
        heads = HeadShape(
            num_heads=attention.num_heads, num_kv_heads=attention.num_kv_heads, head_dim=attention.head_dim
        )
        self.rows = rows
        self._windows = list(dict.fromkeys(layer.attention.window for layer in arch.layers))
        self._cut = heads.cut(num_processors(torch.device(device)), _MOST_PARTIALS)
        self._scratch = AttentionScratch.of(heads, _MOST_PARTIALS, torch.device(device))
        self._words = Staging(self._places(most, has_trees=True).news + 2 * _MOST_NEWS, device)
        capacity = most_units(*most, self._cut) * UNIT_FIELDS
        self._units = {window: (Staging(capacity, device), Staging(capacity, device)) for window in self._windows}

    def units(self, outline: Outline) -> dict[int | None, Units]:
        """The work of attention, by window."""
        chunks = outline.chunks
        of_chunks = ChunkColumns(chunks["row"], chunks["start"], chunks["length"], outline.offsets)
        if outline.trees is not None:
            of_chunks = of_chunks.with_lines(outline.trees.depths)
        return {window: attention_units(*of_chunks, window, self._cut) for window in self._windows}

    def send(self, size: StepSize, outline: Outline, units: dict[int | None, Units], asked: DrawRows | None) -> None:
        """On their way when this returns; the next step's words may be written at once."""
        news = self.rows.take_news()
        if len(news) > _MOST_NEWS:
            self._scatter(news)
            news = news[:0]
        places = self._places(size, has_trees=outline.trees is not None)

        def write(words: Words) -> int:
            words[: places.news] = 0
            words[0] = len(news)
            for place, found in enumerate(units.values()):
                words[1 + 2 * place : 3 + 2 * place] = len(found.small), len(found.large)
            _write_outline(words, places, outline)
            if asked is not None:
                records = np.ascontiguousarray(asked).view(np.int32)
                words[places.records : places.records + len(records)] = records
            words[places.news : places.news + news.size] = news.reshape(-1)
            return places.news + news.size

        self._words.send(write)
        for window, found in units.items():
            for staging, table in zip(self._units[window], found, strict=True):
                if len(table):
                    staging.send(_writing(table))

    def told(self, size: StepSize, *, has_trees: bool) -> Told:
        places = self._places(size, has_trees=has_trees)
        part = self._words.part
        positions, lines = part(places.positions, size.num_tokens), None
        if has_trees:
            paths = part(places.paths, size.num_tokens, _PATH_WORDS).view(torch.uint8)
            lines = Lines(part(places.depths, size.num_tokens), paths)
        return Told(
            num_news=part(0, 1),
            news=part(places.news, _MOST_NEWS, 2),
            records=part(places.records, size.num_picked, _RECORD_WORDS),
            rows=part(places.rows, size.num_tokens),
            positions=positions,
            places=part(places.places, size.num_tokens) if has_trees else positions,
            lines=lines,
            picked=part(places.picked, size.num_picked),
            drawn_rows=part(places.drawn_rows, size.num_picked),
            drawn_positions=part(places.drawn_positions, size.num_picked),
        )

    def attention(self, lines: Lines | None, *, has_large: bool) -> DeviceStep:
        """What attention reads. Large tiles are left out where no step of the shape has any."""
        work = {}
        for place, window in enumerate(self._windows):
            small, large = (
                UnitList(staging.words.view(-1, UNIT_FIELDS), self._words.part(1 + 2 * place + which, 1))
                for which, staging in enumerate(self._units[window])
            )
            work[window] = Work(small, large if has_large else None)
        return DeviceStep(work, self.rows.device_tables, self._scratch, lines)

    def _places(self, size: StepSize, *, has_trees: bool) -> Places:
        return Places.of(size, len(self._windows), has_trees=has_trees)

    def _scatter(self, news: "np.ndarray[Any, np.dtype[np.int32]]") -> None:
        pairs = torch.from_numpy(news).to(self.rows.memory.device)
        count = torch.tensor([len(news)], dtype=torch.int32, device=pairs.device)
        scatter(self.rows.memory, count, pairs)


def _write_outline(words: Words, places: Places, outline: Outline) -> None:
    row, start, length = (outline.chunks[name] for name in ("row", "start", "length"))
    if len(row) == int(outline.query_ends[-1]):
        rows, positions = row, start
    else:
        rows, positions = np.repeat(row, length), outline.positions
    if outline.trees is not None:
        _write_trees(words, places, outline.places, outline.trees)
    words[places.rows : places.positions] = _NO_ROW
    words[places.rows : places.rows + len(rows)] = rows
    words[places.positions : places.positions + len(positions)] = positions
    sampling: Ints = outline.sampling
    words[places.drawn_rows : places.drawn_positions] = _NO_ROW
    for first, values in (
        (places.picked, outline.picked),
        (places.drawn_rows, row[sampling]),
        (places.drawn_positions, outline.drawn_positions),
    ):
        words[first : first + len(values)] = values


def _write_trees(words: Words, places: Places, in_rows: Ints, trees: StepTrees) -> None:
    for first, values in (
        (places.places, in_rows),
        (places.depths, trees.depths),
        (places.paths, trees.paths.view(np.int32).reshape(-1)),
    ):
        words[first : first + len(values)] = values


def _writing(table: "np.ndarray[Any, np.dtype[np.int32]]") -> Any:
    def write(words: Words) -> int:
        words[: table.size] = table.reshape(-1)
        return table.size

    return write
