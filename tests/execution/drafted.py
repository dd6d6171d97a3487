"""A model run over trees of guesses, and over each of their lines alone."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from archerfish.execution.local import RunnableModel
from archerfish.execution.step.inputs import StepBatch
from archerfish.execution.step.rows import Rows
from archerfish.kvcache.storage import KVStorage
from archerfish.request import SamplingParams
from archerfish.scheduling.plan import Chunk, SequenceStart
from archerfish.speculation.draft import Draft
from tests.execution.small_models import BLOCK_SIZE, NUM_BLOCKS
from tests.ops.trees import lines

START, OTHER = 41, 23
"""Positions of the trees' first tokens, in row 0 and row 1. The first one's guesses lie in two blocks."""


def check_lines_of_model(
    model: RunnableModel,
    rows: Rows,
    trees: tuple[Draft, Draft | None],
    check: Callable[[Tensor, Tensor], None],
    starts: tuple[int, int] = (START, OTHER),
) -> None:
    """States and logits at every node are those of its line alone. Without a tree, row 1 decodes one token."""
    lengths = [1 if tree is None else 1 + len(tree) for tree in trees]
    for row, (start, length) in enumerate(zip(starts, lengths, strict=True)):
        begin(rows, row, tokens_of(row, start + length))
    with torch.inference_mode():
        run(model, rows, [Chunk(row, 0, start, False) for row, start in enumerate(starts)])
        chunks = [
            Chunk(row, start, length, True) for row, (start, length) in enumerate(zip(starts, lengths, strict=True))
        ]
        hidden = run(model, rows, chunks, trees)
        logits = model.logits(hidden).clone()
        first = 0
        for row, (start, tree) in enumerate(zip(starts, trees, strict=True)):
            for token, line in enumerate(lines(tree or Draft((), ()))):
                history, guessed = tokens_of(row, start), tokens_of(row, start + lengths[row])[start:]
                begin(rows, row, history + [guessed[place] for place in line])
                alone = run(model, rows, [Chunk(row, 0, start + len(line), True)])[-1:]
                check(hidden[first + token], alone[0])
                check(logits[first + token], model.logits(alone)[0])
            first += lengths[row]


def check_continuation(
    model: RunnableModel,
    storage: KVStorage,
    rows: Rows,
    tree: Draft,
    check: Callable[[Tensor, Tensor], None],
    start: int = START,
) -> None:
    """Once the last guess of a tree was accepted, the token after it gets what it would get without a tree."""
    guessed, line = tokens_of(0, start + 1 + len(tree))[start:], lines(tree)[-1]
    accepted = tokens_of(0, start) + [guessed[token] for token in line]
    places = np.arange(len(line))
    assert line != places.tolist(), "nothing to move"
    with torch.inference_mode():
        begin(rows, 0, tokens_of(0, start) + guessed)
        run(model, rows, [Chunk(0, 0, start, False)])
        run(model, rows, [Chunk(0, start, len(guessed), True)], (tree,))
        storage.move(rows.tables, np.zeros_like(places), start + np.array(line), start + places)
        begin(rows, 0, [*accepted, 5])
        found = run(model, rows, [Chunk(0, len(accepted), 1, True)])
        run(model, rows, [Chunk(0, 0, len(accepted), False)])
        check(found[0], run(model, rows, [Chunk(0, len(accepted), 1, True)])[0])


def run(
    model: RunnableModel, rows: Rows, chunks: list[Chunk], drafts: tuple[Draft | None, ...] | None = None
) -> Tensor:
    batch = StepBatch.of(chunks)
    return model.run(batch if drafts is None else batch.with_trees(drafts), rows).hidden.clone()


def tokens_of(row: int, count: int) -> list[int]:
    return [(11 * row + 7 * place) % 61 for place in range(count)]


def begin(rows: Rows, row: int, tokens: list[int]) -> None:
    count, num_groups = NUM_BLOCKS // (2 * len(rows.tables)), len(rows.tables)
    order = torch.randperm(NUM_BLOCKS, generator=torch.Generator().manual_seed(0)).tolist()
    own = [order[(row * num_groups + group) * count :][: -(-len(tokens) // BLOCK_SIZE)] for group in range(num_groups)]
    rows.start(
        SequenceStart(
            row=row,
            tokens=tuple(tokens),
            num_prompt_tokens=len(tokens),
            blocks=tuple(map(tuple, own)),
            params=SamplingParams(),
            seed=0,
            stop_token_ids=(),
        )
    )
