"""Distills the large model into the small one: its whole distribution, on data and on what it writes itself."""

import torch
import torch.nn.functional as F
from torch import Tensor

from archerfish.models.decoder import Decoder
from recipes.box.model import half_precision, logits_of_rows, sample
from recipes.box.train import Loss, Rows

_GIVEN = (1 / 16, 1 / 4, 5 / 8)
"""Lengths of beginnings, as shares of a row."""
_TEMPERATURES = (0.0, 0.8, 1.0)
"""Temperatures in turn: greedy, and as varied as requests are."""
_BATCHES_AT_ONCE = 12  # Generation is bound by latency, not by work: many rows take hardly longer than a few.


class OwnRows:
    """Rows that the teacher generated after beginnings of several lengths, mixed half and half with rows of data."""

    def __init__(self, teacher: Decoder, data: Rows, rounds: int, device: str) -> None:
        self._data = data
        written = []
        for number in range(rounds * len(_GIVEN) * len(_TEMPERATURES)):
            rows = torch.cat([data.next(final=True) for _ in range(_BATCHES_AT_ONCE)])
            given = int(rows.shape[1] * _GIVEN[number % len(_GIVEN)])
            temperature = _TEMPERATURES[number // len(_GIVEN) % len(_TEMPERATURES)]
            written.append(sample(teacher, rows[:, :given], rows.shape[1], temperature, device, number))
        self._written = torch.cat(written)
        self._generator = torch.Generator(device=device)

    @property
    def num_own_tokens(self) -> int:
        return self._written.numel()

    def seek(self, step: int) -> None:
        self._data.seek(step)
        self._generator.manual_seed(step)

    def next(self, *, final: bool) -> Tensor:
        rows = self._data.next(final=final)
        half = rows.shape[0] // 2
        picked = torch.randint(len(self._written), (half,), device=rows.device, generator=self._generator)
        return torch.cat((rows[half:], self._written[picked]))


def imitation_loss(teacher: Decoder) -> Loss:
    """Return the forward Kullback-Leibler divergence from the teacher, over the whole vocabulary at every position."""

    def loss(student: Decoder, rows: Tensor) -> Tensor:
        with half_precision(rows.device.type):
            with torch.no_grad():
                wanted = torch.log_softmax(logits_of_rows(teacher, rows[:, :-1]), dim=-1)
            found = torch.log_softmax(logits_of_rows(student, rows[:, :-1]), dim=-1)
        return F.kl_div(found.flatten(0, 1), wanted.flatten(0, 1), reduction="batchmean", log_target=True)

    return loss


@torch.no_grad()
def agreement(teacher: Decoder, student: Decoder, prompts: Tensor, length: int, device: str) -> float:
    """Return the share of positions of the teacher's greedy continuations at which the student's first choice is the
    same.

    A continuation ends with the first end-of-text token, 0, or end of turn, 1, which are judged like the others.
    """
    rows = sample(teacher, prompts, length, 0.0, device, 0)
    first = prompts.shape[1]
    matches, judged = 0, 0
    with half_precision(device):
        for piece in rows.split(64):
            written = piece[:, first:]
            choice = logits_of_rows(student, piece[:, :-1])[:, first - 1 :].argmax(-1)
            ended = (written <= 1).cumsum(1) - (written <= 1).long() > 0
            matches += int(((choice == written) & ~ended).sum())
            judged += int((~ended).sum())
    return matches / judged
