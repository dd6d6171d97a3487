"""Teaches the small model to guess the large one: its whole distribution, on data and on what it writes itself."""

import torch
import torch.nn.functional as F
from torch import Tensor

from archerfish.models.decoder import Decoder
from recipes.box.model import half_precision, logits_of_rows, sample
from recipes.box.shapes import CONTEXT
from recipes.box.train import Loss, Rows

_PROMPT_TOKENS = 64


class OwnRows:
    """Rows that the teacher wrote after beginnings from the data, mixed half and half with rows of the data."""

    def __init__(self, teacher: Decoder, data: Rows, num_batches: int, device: str) -> None:
        self._data = data
        self._written: list[Tensor] = []
        for number in range(num_batches):
            rows = data.next(final=True)
            # By turns as likely as it gets, and as varied as people will ask for.
            temperature = (0.0, 0.8, 1.0)[number % 3]
            self._written.append(sample(teacher, rows[:, :_PROMPT_TOKENS], CONTEXT + 1, temperature, device, number))
        self._turn = 0

    def next(self, *, final: bool) -> Tensor:
        rows = self._data.next(final=final)
        self._turn += 1
        half = rows.shape[0] // 2
        own = self._written[self._turn % len(self._written)]
        picked = torch.randint(own.shape[0], (half,), device=own.device)
        return torch.cat((rows[half:], own[picked]))


def imitation_loss(teacher: Decoder) -> Loss:
    """Forward Kullback-Leibler divergence from the teacher, over the whole vocabulary at every position."""

    def loss(student: Decoder, rows: Tensor) -> Tensor:
        with half_precision(rows.device.type):
            with torch.no_grad():
                wanted = torch.log_softmax(logits_of_rows(teacher, rows[:, :-1]), dim=-1)
            found = torch.log_softmax(logits_of_rows(student, rows[:, :-1]), dim=-1)
        return F.kl_div(found.flatten(0, 1), wanted.flatten(0, 1), reduction="batchmean", log_target=True)

    return loss


@torch.no_grad()
def agreement(teacher: Decoder, student: Decoder, prompts: Tensor, length: int, device: str) -> float:
    """Share of positions of the teacher's greedy continuations at which the student's first choice is the same."""
    rows = sample(teacher, prompts, length, 0.0, device, 0)
    first = prompts.shape[1]
    matches = []
    with half_precision(device):
        for piece in rows.split(64):
            choice = logits_of_rows(student, piece[:, :-1])[:, first - 1 :].argmax(-1)
            matches.append((choice == piece[:, first:]).float().mean(1))
    return float(torch.cat(matches).mean())
