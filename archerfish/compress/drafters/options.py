"""What can be chosen of the training of a drafter. Knows no model and reads no file."""

from dataclasses import dataclass, fields
from typing import Literal

from archerfish.config.settings import flag_name
from archerfish.errors import ConfigError

Method = Literal["medusa", "eagle", "draft_model"]

DEFAULT_STEPS = 2000
_USED_BY: dict[str, tuple[Method, ...]] = {
    "vocabulary": ("medusa", "eagle"),
    "layers": ("medusa", "draft_model"),
    "hidden_size": ("draft_model",),
    "intermediate_size": ("eagle", "draft_model"),
    "start": ("draft_model",),
}
"""Options that not every method has a use for."""
_SHAPE = ("layers", "hidden_size", "intermediate_size")
_LEAST = {
    **dict.fromkeys(("depths", "batch", "steps", "max_steps", "layers", "hidden_size", "intermediate_size"), 1),
    "samples": 16,
    "length": 8,
    "vocabulary": 2,
    "seed": 0,
}
_MOST_DEPTHS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterOptions:
    """Checked when made."""

    method: Method
    """medusa: heads that guess several places ahead from the model's last states; eagle: a layer that goes on by \
itself from states of the model (EAGLE-3); draft_model: a smaller Llama of the same vocabulary."""
    output: str
    """Directory to write to. It holds the state while training goes on: the same command goes on where it stopped."""
    prompts: str | None = None
    """File of prompts that the model answers, one a line: texts, or in a .jsonl file objects with a prompt or \
messages. By default the model writes the beginnings itself."""
    samples: int = 4096
    """Texts that the model writes to learn from; a sixteenth of them is held out to measure with."""
    length: int = 256
    """Most tokens of such a text, its prompt included."""
    depths: int = 4
    """Guesses one after the other that are learned and measured: the number of Medusa's heads, and the steps that \
EAGLE is unrolled for."""
    vocabulary: int | None = None
    """medusa, eagle: so many tokens can be guessed, those most frequent in the samples; by default all."""
    layers: int | None = None
    """draft_model: layers of a new model, by default 2; medusa: blocks of each head, by default 1."""
    hidden_size: int | None = None
    """draft_model: width of a new model; by default half of the model's."""
    intermediate_size: int | None = None
    """eagle, draft_model: width of the feed-forward part; by default the model's, or 8/3 of a draft model's width."""
    start: str | None = None
    """draft_model: the model to start from, named like a model, instead of a new one."""
    batch: int = 32
    """Texts of one step."""
    steps: int | None = None
    """Steps to train for; by default 2000."""
    minutes: float | None = None
    """Instead of --steps: as many as fit into so much time, writing samples included; measured over the first ones."""
    max_steps: int | None = None
    """Stop after so many steps for now; the same command goes on from there."""
    learning_rate: float = 1e-3
    """Its highest; it rises over the first steps and falls to nothing with the last."""
    divergence: float = 0.1
    """Share of the Kullback-Leibler divergence in the loss, from 0 to 1; the rest is the share of guesses refused. \
It falls from 1 to this over the first quarter of the steps, because guesses that are far off hardly learn from being \
refused."""
    seed: int = 0
    """Of new weights, samples and their order."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value, users = getattr(self, field.name), _USED_BY.get(field.name)
            if users is not None and value is not None and self.method not in users:
                raise ConfigError(
                    f"{flag_name(field.name)} is for --method {' or '.join(users)}, not {self.method}: leave it out"
                )
            if field.name in _LEAST and value is not None and value < _LEAST[field.name]:
                raise ConfigError(f"{flag_name(field.name)} {value} must be at least {_LEAST[field.name]}")
        if self.start is not None and any(getattr(self, name) is not None for name in _SHAPE):
            raise ConfigError("--start has a shape of its own: leave out --layers, --hidden-size, --intermediate-size")
        if self.steps is not None and self.minutes is not None:
            raise ConfigError("--steps and --minutes both say when to end: give one of them")
        self._check_ranges()

    def _check_ranges(self) -> None:
        if self.minutes is not None and not 0 < self.minutes < float("inf"):
            raise ConfigError(f"--minutes {self.minutes} must be more than 0")
        if not 0 < self.learning_rate < 1:
            raise ConfigError(f"--learning-rate {self.learning_rate} must lie between 0 and 1")
        if not 0 <= self.divergence <= 1:
            raise ConfigError(f"--divergence {self.divergence} must be from 0 to 1")
        if self.depths > _MOST_DEPTHS:
            raise ConfigError(f"--depths {self.depths} must be at most {_MOST_DEPTHS}")
        if self.length < self.depths + 4:
            raise ConfigError(f"--length {self.length} leaves no room for --depths {self.depths}: make it longer")
